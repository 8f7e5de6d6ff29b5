"""Keys, the ZAP handler, authorization, rate limits and signatures."""
