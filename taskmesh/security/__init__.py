"""Keys, the ZAP handler, authorization and signatures."""
