"""Keys, the ZAP handler, rights, rate limits and signatures: what decides who may say what."""
