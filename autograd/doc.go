// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package autograd computes gradients. Its tensors record how they were computed, and a backward pass goes through that
// record. It corresponds to torch.autograd and the functions of torch that it differentiates.
//
//	w := autograd.Parameter(weights)                 // a leaf that gradients are wanted for
//	y := autograd.Constant(x).MatMul(w).ReLU()       // computed at once and recorded
//	loss := autograd.MSE(y, target, autograd.ReduceMean)
//	err := loss.Backward(ctx)                        // w.Grad() is d loss / d w
//
// An operation that fails returns a [Variable] that carries the error, and everything computed from it does too, so one
// check at the end is enough: [Variable.Backward] and [Variable.Err] return it. Errors are *cohort.Error.
//
// # Custom functions
//
// A [Function] has a forward and a backward part, and [Apply] runs it. All operations of this package work that way.
//
// # Evaluation without gradients
//
// The package has no global mode. [NoGrad] makes a constant that switches off recording for everything computed from it, so a
// model that is called with it saves nothing.
//
// # What is saved
//
// Functions keep what their gradients need until the backward pass has used it; [RetainGraph] keeps it longer. Do not
// change a tensor between the computation that used it and its backward pass: there are no version counters that would
// detect this. Second derivatives are not supported.
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
