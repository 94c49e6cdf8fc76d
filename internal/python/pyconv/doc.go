// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package pyconv describes how Go's values correspond to Python's: the names of a struct's fields ([Fields]), how a decoded value is
// stored in a typed Go variable ([Assign], [AssignArgs]), which values are one and the same ([Identify]), and what a type of
// the program may implement to be sent or filled in its own way. Package rpcwire writes values.
package pyconv

// MaxDepth bounds the nesting of values in both directions, and ends a Go value that contains itself.
const MaxDepth = 200

// Reference is a remote reference inside a value: a type that embeds [ReferenceMark]. The codec asks the agent for the fork to
// send, and for the reference that an arriving fork becomes.
type Reference interface{ isReference() }

// ReferenceMark marks the type that embeds it as a [Reference], without a method that programs see.
type ReferenceMark struct{}

func (ReferenceMark) isReference() {}

// AssignReference makes the reference that dst points to the received reference v, which has another Go type, or describes why it
// cannot. It reports false when dst does not point to a reference. Only the agent knows the types of its references.
type AssignReference func(dst any, v Reference) (bool, error)
