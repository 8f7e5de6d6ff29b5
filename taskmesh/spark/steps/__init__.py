"""Steps of Spark jobs as pools run them. Pools import this folder, so it knows nothing of PySpark."""
