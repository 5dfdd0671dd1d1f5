"""Predicted latencies of GPU kernels and networks against those that NeuSight's authors measured."""
