"""The backend that trains blocks of points by torch, on GPUs: devices, programs, points in device memory."""
