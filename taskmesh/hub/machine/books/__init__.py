"""The books of the hub machine: tasks, lanes, clients and sinks as it knows them."""
