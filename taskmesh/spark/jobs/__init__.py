"""The Spark side: what the driver and Spark's Python workers import."""
