"""The formats that commands read: samples, how they are changed, and how a command reads them."""
