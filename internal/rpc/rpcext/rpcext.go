// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpcext lets another package take part in the calls of an RPC agent: it may wrap outgoing requests and answers,
// unwrap incoming ones, and serve additional message types. Distributed autograd is built on it:
// PyTorch wraps the messages of a forward pass, and has its own message types for the backward pass.
//
// A call passes an [Extension] four times:
//
//	caller    Outgoing          before the request is sent; it sees the context of the call
//	callee    Unwrap            when a wrapped request arrives; gives the handler its context
//	callee    Wrapped.Answer    before the answer is sent
//	caller    Exchange.Answered when the answer has come, or Exchange.Lost when none will
package rpcext

import (
	"context"

	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
)

// Worker is a worker as messages name it.
type Worker struct {
	Name string
	ID   int // -1 for a client, which is not a member of the world
	Go   bool
}

// Extension is what takes part. All methods are called from many goroutines at once, but for Attach.
type Extension interface {
	// Attach is called once, before the first message, with the agent that the extension belongs to.
	Attach(a Agent) error
	// Wrappers are the types of requests around other requests, which Unwrap takes apart.
	Wrappers() []rpcwire.Type
	// Unwrap returns what is inside a wrapped request. It is called in the goroutine that reads and must not block. It may
	// replace tensors of the inner message by values of its own; see package tensorlike.
	Unwrap(from Worker, m *rpcwire.Message) (*Wrapped, error)
	// Kinds are the types of requests that Serve answers.
	Kinds() []rpcwire.Type
	// Serve handles a request of one of its kinds. It runs like a handler, perhaps in the goroutine that reads: in a slot of
	// its own, which is free for others while it waits in a method of [Agent] with its ctx, and when it has returned without
	// an answer. answer must be called once, by Serve or later; further calls do nothing. An error goes back as PyTorch's
	// EXCEPTION. ctx ends when a Go caller gives up, when the session ends, and with the answer.
	Serve(ctx context.Context, from Worker, m *rpcwire.Message, answer func(*rpcwire.Message, error))
	// Counts are what the extension holds, under PyTorch's names, for the debug information of its agent.
	Counts() map[string]int
	// Outgoing is called for every request that is sent with the ctx of a call: calls, creations, fetches, also those of the
	// worker to itself. fn names what is called, for errors. A nil Exchange lets it go as it is. It must not block.
	Outgoing(ctx context.Context, to Worker, fn string, m *rpcwire.Message) (*Exchange, error)
	// Died is called for a worker whose process has certainly ended, perhaps more than once. It must not block.
	Died(w Worker)
}

// Exchange is a request that an extension takes part in. Exactly one of Answered and Lost is called, once.
type Exchange struct {
	// Message is what is sent. Its type and payload may differ from those of the request, its tensors may not.
	Message *rpcwire.Message
	// Answered gets the answer, which is not an EXCEPTION, and makes it the answer to the request inside.
	Answered func(m *rpcwire.Message) error
	// Lost is called when the request was not sent, failed, or is not awaited any more.
	Lost func()
}

// Wrapped is what was inside a wrapped request.
type Wrapped struct {
	// Message is the inner request.
	Message *rpcwire.Message
	// Context derives the context of the handler, which calls made with it inherit. Nil leaves it as it is.
	Context func(context.Context) context.Context
	// Answer turns the answer to the inner request into that of the wrapped one. It is not called for an EXCEPTION.
	Answer func(m *rpcwire.Message) error
}

// Agent is what an extension may use of its agent.
type Agent interface {
	// Self is this worker. Its id is -1 before the world has given it one.
	Self() Worker
	// Workers are all workers of the world, this one included.
	Workers() []Worker
	// Worker returns a worker by its id.
	Worker(id int) (Worker, error)
	// Send sends a request to a worker, perhaps this one, and waits for the answer. An EXCEPTION is an error. It is not
	// offered to the extension.
	Send(ctx context.Context, to int, m *rpcwire.Message) (*rpcwire.Message, error)
	// Post is Send that does not wait. done is called once, normally in the goroutine that reads the answer: when it takes
	// long, another one reads on.
	Post(ctx context.Context, to int, m *rpcwire.Message, done func(*rpcwire.Message, error))
	// Call calls a function by name.
	Call(ctx context.Context, to int, fn string, args ...any) (any, error)
	// Object returns the value of an own object that a worker holds a reference to, when it has been made.
	Object(ctx context.Context, holder int, id rpcwire.GlobalID) (any, error)
	// Reference returns the object that a *rpc.Ref refers to, and its owner.
	Reference(ref any) (id rpcwire.GlobalID, owner Worker, err error)
	// Go runs fn in a goroutine that the agent joins when it is closed. ctx ends then. It reports false when it is closed.
	Go(fn func(ctx context.Context)) bool
}

// makeOption is set while packages are initialized.
var makeOption func(x Extension) any

// Provide sets how [Option] makes an option. Package rpc calls it when it is initialized.
func Provide(option func(x Extension) any) struct{} {
	makeOption = option
	return struct{}{}
}

// Option returns the rpc.Option with which an agent takes x in. Package rpc provides it through here, and not as an exported
// function, because only packages of this module can have an Extension.
func Option(x Extension) any { return makeOption(x) }
