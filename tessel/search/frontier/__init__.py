"""What more memory buys: the least period or makespan at each memory limit."""
