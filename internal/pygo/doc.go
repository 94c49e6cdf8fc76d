// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package pygo says how Go's values correspond to Python's: the names of a struct's fields ([Fields]), how a decoded value is
// stored in a typed Go variable ([Assign], [AssignArgs]), which values are one and the same ([Identify]), and what a type of
// the program may implement to be sent or filled in its own way. How values are written is the affair of package rpcwire.
package pygo

// MaxDepth bounds the nesting of values in both directions, and ends a Go value that contains itself.
const MaxDepth = 200

// Reference is a remote reference inside a value: a type that embeds [ReferenceMark]. The codec asks the agent for the fork to
// send, and for the reference that an arriving fork becomes.
type Reference interface{ isReference() }

// ReferenceMark marks the type that embeds it as a [Reference], without a method that programs see.
type ReferenceMark struct{}

func (ReferenceMark) isReference() {}

// TensorHolder is a value of the program that stands for a tensor, such as one that gradients are recorded for. It is sent as
// its tensor, and whoever sends the message finds it in the Holders of its encoder. Where one arrives, it is because an extension of the
// agent has put it into the tensors of the message; it fits where a tensor does. The tensor is a *tensor.Tensor or *tensor.Sparse,
// or nil.
type TensorHolder interface{ HeldTensor() any }

// TensorTarget is a type of the program that a received tensor, a *tensor.Tensor or *tensor.Sparse, can be made into.
type TensorTarget interface{ AssignTensor(t any) error }

// AssignReference makes the reference that dst points to the received reference v, which has another Go type, or says why it
// cannot. It reports false when dst does not point to a reference. Only the agent knows the types of its references.
type AssignReference func(dst any, v Reference) (bool, error)
