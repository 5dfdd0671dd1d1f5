"""Time that tensors take between processes of this machine: to the next device, and reduced among all."""
