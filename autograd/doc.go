// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package autograd computes gradients: tensors that remember how they were computed, and the pass back through that
// memory. It corresponds to torch.autograd and the functions of torch that it differentiates.
//
//	w := autograd.Parameter(weights)                 // a leaf that gradients are wanted for
//	y := autograd.Constant(x).MatMul(w).ReLU()       // computed at once and recorded
//	loss := autograd.MSE(y, target, autograd.ReduceMean)
//	err := loss.Backward(ctx)                        // w.Grad() is d loss / d w
//
// An operation that fails returns a [Variable] that carries the error, and everything computed from it does too, so one
// check at the end is enough: [Variable.Backward] and [Variable.Err] return it. Errors are *dist.Error.
//
// # Functions of your own
//
// A [Function] has a forward and a backward part and is run by [Apply]. All operations of this package are made that way.
//
// # Evaluation without gradients
//
// There is no global mode. [NoGrad] makes a constant that switches recording off for what is computed from it, so a model
// that is called with it keeps nothing.
//
// # What is saved
//
// Functions keep what their gradients need until the pass has used it; [RetainGraph] keeps it longer. Tensors that were
// used in a computation must not be changed before its pass: there are no version counters that would notice. Second
// derivatives are not recorded.
//
//	PyTorch                                   here
//	requires_grad, is_leaf, grad, detach      RequiresGrad, IsLeaf, Grad, Detach
//	torch.no_grad, inference_mode             NoGrad
//	t.backward, torch.autograd.backward       Variable.Backward, Backward
//	torch.autograd.grad                       Grad
//	t.register_hook, retain_grad              OnGrad, RetainGrad
//	register_post_accumulate_grad_hook        OnAccumulated
//	torch.autograd.Function, gradcheck        Function, GradCheck
package autograd
