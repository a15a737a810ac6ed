// What of torch models are made of and run with. <torch/torch.h> brings every module, optimiser and data loader
// besides, and a file that reads all of it takes twice as long to compile, precompiled or not.
#pragma once

#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>
