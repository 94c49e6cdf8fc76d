// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
)

// RemoteError is what a function at another worker failed with: a Python exception or the error of a Go handler. It is the
// cause of the *[cohort.Error] that a call returns, which has the same code and names the call. A Go handler that returns one,
// or what [Raise] makes, raises that exception in a Python caller.
//
// errors.Is holds for [cohort.Remote] and for Code.
type RemoteError struct {
	// Kind is the class of the exception: "ValueError", or "module.Class" outside Python's builtins.
	Kind string
	// Message is what the exception says.
	Message string
	// Worker is where it happened.
	Worker string
	// Stack is the traceback or stack at that worker.
	Stack string
	// Code is the code of a Go worker's error, or the one that belongs to a Python exception: NotFound for a function
	// that does not exist, InvalidArgument for wrong arguments, Remote otherwise.
	Code cohort.Code

	hint string // what PyTorch adds for its callers
	near bool   // Worker is the callee, which the error around this one names
}

// Raise returns the error of a handler that a Python caller sees as an exception of the given class, such as
// "ValueError" or "mymodule.MyError". It is a RuntimeError with the same text if the caller does not have that class.
func Raise(kind, format string, args ...any) *RemoteError {
	return &RemoteError{Kind: kind, Message: fmt.Sprintf(format, args...), Code: cohort.Remote}
}

// Error returns kind and message, and the worker if it is another one than the callee.
func (e *RemoteError) Error() string {
	var b strings.Builder
	if e.Worker != "" && !e.near {
		fmt.Fprintf(&b, "worker %q: ", e.Worker)
	}
	b.WriteString(e.Kind)
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	return b.String()
}

// Is reports whether target is cohort.Remote or the error's code.
func (e *RemoteError) Is(target error) bool {
	code, ok := target.(cohort.Code)
	if ok {
		return code == cohort.Remote || code == e.Code
	}
	switch target {
	case context.DeadlineExceeded:
		return e.Code == cohort.DeadlineExceeded
	case context.Canceled:
		return e.Code == cohort.Canceled
	}
	return false
}

// As lets errors.As find the code of a RemoteError.
func (e *RemoteError) As(target any) bool {
	if p, ok := target.(*cohort.Code); ok {
		*p = e.Code
		return true
	}
	return false
}

// pythonKinds are the exceptions that a Python caller gets for the codes of a handler's error.
var pythonKinds = map[cohort.Code]string{
	cohort.InvalidArgument: "ValueError", cohort.NotFound: "AttributeError", cohort.NotSupported: "NotImplementedError",
	cohort.Mismatch: "TypeError", cohort.DeadlineExceeded: "TimeoutError",
}

// describe turns the error of a handler into an exception.
func describe(err error) rpcwire.PythonError {
	if remote, ok := errors.AsType[*RemoteError](err); ok {
		out := rpcwire.PythonError{
			Kind: remote.Kind, Message: remote.Message, Worker: remote.Worker, Stack: remote.Stack,
			Code: remote.Code, Hint: remote.hint,
		}
		if out.Code == cohort.Unknown {
			out.Code = cohort.Remote
		}
		if out.Kind == "" {
			out.Kind = "RuntimeError"
		}
		return out
	}
	out := rpcwire.PythonError{Kind: "RuntimeError", Message: err.Error(), Code: cohort.CodeOf(err)}
	if kind := pythonKinds[out.Code]; kind != "" {
		out.Kind = kind
	}
	if out.Code == cohort.Unknown {
		out.Code = cohort.Remote
	}
	return out
}

// exception is what a callee answers.
func (a *Agent) exception(err error, toGo bool) *rpcwire.RemoteException {
	e := describe(err)
	if !toGo {
		return e.Torch(int(a.id), a.name)
	}
	if reason, ok := errors.AsType[Reason](err); ok {
		e.Kind = reasonKind + strconv.Itoa(int(reason))
	}
	return e.Go(a.name)
}

// raised is the caller's side of exception.
func raised(worker string, x *rpcwire.RemoteException) *RemoteError {
	return remoteError(worker, rpcwire.RaisedError(worker, x))
}

func remoteError(worker string, e rpcwire.PythonError) *RemoteError {
	return &RemoteError{Kind: e.Kind, Message: e.Message, Worker: e.Worker, Stack: e.Stack, Code: e.Code, near: e.Worker == worker}
}

// exceptionError turns an EXCEPTION message into an error.
func exceptionError(op, fn, worker string, payload []byte) error {
	class, text := rpcwire.DecodeException(payload)
	if class == rpcwire.ErrorTimeout {
		e := cohort.New(op, cohort.DeadlineExceeded, text)
		e.Peer, e.Key = worker, fn
		return e
	}
	return restoreReason(remoteError(worker, rpcwire.ErrorFromLine(worker, text)))
}

func isNotFound(err error) bool { return errors.Is(err, cohort.NotFound) }

// Reason says why a reference cannot be used. A Reason is an error, so that errors.Is(err, rpc.ErrOwnerLost) works on
// every error of this package that carries it.
type Reason uint8 //nolint:errname // it reads as the reason of an error

// The reasons.
const (
	ErrGone           Reason = Reason(rrefcore.Gone)           // the object existed and was freed
	ErrCanceled       Reason = Reason(rrefcore.Cancelled)      // its creation was cancelled
	ErrLeaseExpired   Reason = Reason(rrefcore.LeaseExpired)   // this worker and the owner were disconnected for too long
	ErrOwnerLost      Reason = Reason(rrefcore.OwnerLost)      // the owner's process is gone
	ErrOwnerRestarted Reason = Reason(rrefcore.OwnerRestarted) // another process has the owner's name now
	ErrCreateFailed   Reason = Reason(rrefcore.CreateFailed)   // the creating call failed
	ErrCreateTimeout  Reason = Reason(rrefcore.TimedOut)       // the creating call was not confirmed in time
	ErrRefClosed      Reason = Reason(rrefcore.Closed)         // the reference was closed
	ErrPeerDead       Reason = Reason(rrefcore.PeerDead)       // the worker to share with is known to be dead
	ErrWithdrawn      Reason = Reason(rrefcore.Withdrawn)      // the message that brought it came too late
	ErrCreatorLost    Reason = Reason(rrefcore.CreatorLost)    // its creator died before the object was made
)

// String returns the reason in plain words.
func (r Reason) String() string { return rrefcore.Code(r).String() }

// Error makes a Reason usable with errors.Is.
func (r Reason) Error() string { return r.String() }

var reasonCodes = map[Reason]cohort.Code{
	ErrGone: cohort.NotFound, ErrCanceled: cohort.Canceled, ErrLeaseExpired: cohort.PeerLost, ErrOwnerLost: cohort.PeerLost,
	ErrOwnerRestarted: cohort.PeerLost, ErrCreateFailed: cohort.Remote, ErrCreateTimeout: cohort.DeadlineExceeded,
	ErrRefClosed: cohort.Closed, ErrPeerDead: cohort.PeerLost, ErrWithdrawn: cohort.Aborted, ErrCreatorLost: cohort.PeerLost,
}

// Is reports whether target is the [cohort.Code] that belongs to the reason.
func (r Reason) Is(target error) bool {
	code, ok := target.(cohort.Code)
	return ok && code == reasonCodes[r]
}

// refFailure is the error of a reference that cannot be used: its key is the object's id, its peer the owner. The reason and
// the cause are in its chain.
func refFailure(op string, id rrefcore.ID, owner string, code rrefcore.Code, cause error) error {
	return reasonError(op, id.String(), owner, Reason(code), cause)
}

func reasonError(op, ref, owner string, reason Reason, cause error) *cohort.Error {
	if reason == ErrCreateTimeout && cohort.CodeOf(cause) == cohort.Canceled {
		reason = ErrCanceled // the creating call was given up before its time was over
	}
	e := cohort.New("rpc: "+op+" reference", reasonCodes[reason], reason.String())
	e.Key, e.Peer, e.Err = ref, owner, reason
	if cause != nil {
		e.Detail += ": " + cause.Error()
		e.Err = fmt.Errorf("%w: %w", reason, cause)
		if code := cohort.CodeOf(cause); reason == ErrCreateFailed && code != cohort.Unknown {
			e.Code = code // it is more specific
		}
	}
	return e
}

// reasonKind is the exception class under which a Reason travels between Go workers.
const reasonKind = "RRefError"

// restoreReason gives an error that came over the wire its reason back.
func restoreReason(e *RemoteError) error {
	var reason Reason
	if n, _ := fmt.Sscanf(e.Kind, reasonKind+"%d", &reason); n == 1 {
		return reasonError("use", "", e.Worker, reason, errors.New(e.Message))
	}
	return e
}
