"""Random models, whose kernels train the cost model beside those of the zoo."""
