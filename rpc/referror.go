// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"errors"
	"fmt"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rrefcore"
)

// Reason says why a reference cannot be used. A Reason is an error, so that errors.Is(err, rpc.ErrOwnerLost) works on
// every error of this package that carries it.
type Reason uint8 //nolint:errname // it reads as the reason of an error

// The reasons.
const (
	ErrGone           Reason = Reason(rrefcore.Gone)           // the object existed and was freed
	ErrCancelled      Reason = Reason(rrefcore.Cancelled)      // its creation was cancelled
	ErrLeaseExpired   Reason = Reason(rrefcore.LeaseExpired)   // this worker and the owner lost touch for too long
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

var reasonCodes = map[Reason]dist.Code{
	ErrGone: dist.NotFound, ErrCancelled: dist.Canceled, ErrLeaseExpired: dist.PeerLost, ErrOwnerLost: dist.PeerLost,
	ErrOwnerRestarted: dist.PeerLost, ErrCreateFailed: dist.Remote, ErrCreateTimeout: dist.DeadlineExceeded,
	ErrRefClosed: dist.Closed, ErrPeerDead: dist.PeerLost, ErrWithdrawn: dist.Aborted, ErrCreatorLost: dist.PeerLost,
}

// RefError is the failure of a reference.
type RefError struct {
	// Op is what was attempted: "fetch", "share", "use".
	Op string
	// Ref is the id of the object.
	Ref string
	// Owner is the worker that has or had it.
	Owner  string
	Reason Reason
	// Err is the cause, such as the failure of the creating call.
	Err error
}

// Error returns one line.
func (e *RefError) Error() string {
	text := fmt.Sprintf("rpc: %s reference %s: %s", e.Op, e.Ref, e.Reason)
	if e.Owner != "" {
		text += fmt.Sprintf(" (owner %s)", e.Owner)
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *RefError) Unwrap() error { return e.Err }

// Is reports whether target is the reason, or the [dist.Code] that belongs to it.
func (e *RefError) Is(target error) bool {
	switch t := target.(type) {
	case Reason:
		return t == e.Reason
	case dist.Code:
		return t == reasonCodes[e.Reason]
	}
	return false
}

// As gives errors.As the code.
func (e *RefError) As(target any) bool {
	if p, ok := target.(*dist.Code); ok {
		*p = reasonCodes[e.Reason]
		return true
	}
	return false
}

func refFailure(op string, id rrefcore.ID, owner string, code rrefcore.Code, cause error) error {
	return &RefError{Op: op, Ref: id.String(), Owner: owner, Reason: Reason(code), Err: cause}
}

// saysAll reports whether an error tells by itself what failed where.
func saysAll(err error) bool {
	switch err.(type) { //nolint:errorlint // only the outermost
	case *RemoteError, *RefError:
		return true
	}
	return false
}

// reasonKind is the exception class under which a RefError travels between Go workers.
const reasonKind = "RRefError"

// restoreReason gives a RefError that came over the wire its reason back.
func restoreReason(e *RemoteError) error {
	var reason Reason
	if n, _ := fmt.Sscanf(e.Kind, reasonKind+"%d", &reason); n == 1 {
		return &RefError{Op: "use", Ref: "at its owner", Owner: e.Worker, Reason: reason, Err: errors.New(e.Message)}
	}
	return e
}
