// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"errors"
	"fmt"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/rrefcore"
)

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
