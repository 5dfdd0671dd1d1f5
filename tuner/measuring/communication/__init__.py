"""What passing tensors between processes of this machine takes: to the next device, and reduced among all."""
