// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohort

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Rank is the number of a process in a world or group, from 0 to the world size minus one.
type Rank int

// String returns the number.
func (r Rank) String() string { return strconv.Itoa(int(r)) }

// NoRank marks an error, event or option that concerns no particular rank.
const NoRank Rank = -1

// Code classifies an [Error]. Codes are stable: they travel between processes and may be stored. A Code is an error
// itself, so that errors.Is(err, cohort.PeerLost) works on any error that carries it.
type Code uint8

// The codes. Their numbers are part of the wire format between Go peers: append, never renumber.
const (
	Unknown          Code = iota // no classification
	Canceled                     // the caller's context was cancelled
	DeadlineExceeded             // a deadline or timeout passed
	NotFound                     // a key, function or object that does not exist
	AlreadyExists                // a name, rank or key that is taken
	InvalidArgument              // the caller's mistake: nothing was sent
	NotSupported                 // the peer or the backend cannot do this
	NotANumber                   // a counter key that holds something else
	TooLarge                     // a key, value or frame over its limit
	PeerLost                     // a process that this operation needs has died or cannot be reached
	Aborted                      // ended by Abort, by a failed group or by a shutdown
	Mismatch                     // ranks called different operations, shapes, types or roots
	Protocol                     // a peer sent something that the protocol forbids
	Unavailable                  // a server that cannot be reached
	Closed                       // the object was closed by the program itself
	Exhausted                    // a bound on queues, connections or memory was reached
	Remote                       // a handler on another worker, or a worker of a job, failed
	Internal                     // a bug in cohort
	Empty                        // a queue without items
	Replaced                     // a store that was restarted, cleared or replaced
	codeCount
)

var codeNames = [codeCount]string{
	Unknown: "unknown error", Canceled: "cancelled", DeadlineExceeded: "timeout", NotFound: "not found",
	AlreadyExists: "already exists", InvalidArgument: "invalid argument", NotSupported: "not supported",
	NotANumber: "not a number", TooLarge: "too large", PeerLost: "peer lost", Aborted: "aborted",
	Mismatch: "mismatch", Protocol: "protocol error", Unavailable: "unavailable", Closed: "closed",
	Exhausted: "limit reached", Remote: "remote error", Internal: "internal error", Empty: "empty",
	Replaced: "replaced",
}

// String returns the code in plain English.
func (c Code) String() string {
	if c < codeCount {
		return codeNames[c]
	}
	return "code " + strconv.Itoa(int(c))
}

// Error makes a Code usable as a sentinel for errors.Is.
func (c Code) Error() string { return c.String() }

// MarshalText writes the text of String, for JSON output.
func (c Code) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads what MarshalText has written, in this version or a later one that has more codes.
func (c *Code) UnmarshalText(text []byte) error {
	if i := slices.Index(codeNames[:], string(text)); i >= 0 {
		*c = Code(i) //nolint:gosec // one of the codes
		return nil
	}
	if number, ok := strings.CutPrefix(string(text), "code "); ok {
		if n, err := strconv.ParseUint(number, 10, 8); err == nil {
			*c = Code(n)
			return nil
		}
	}
	return Newf("cohort: code", InvalidArgument, "%q is not an error code", text)
}

// Error is the error of every public layer of cohort. The fields say what was attempted, on what, with whom, and why it
// ended; unset fields are left out of the text.
type Error struct {
	// Op is the package and operation, such as "tcpstore: wait".
	Op string
	// Code classifies the error; errors.Is(err, e.Code) holds.
	Code Code
	// Rank is the rank or worker id the error is about, or NoRank. The constructors set NoRank; an Error that is written
	// out without an Op and a Rank is about no rank either, and is printed so.
	Rank Rank
	// Peer is the address or name of the other side.
	Peer string
	// Key is the store key, function or object concerned.
	Key string
	// Detail is, in plain English, what was wrong and what to do about it.
	Detail string
	// Err is the cause.
	Err error
}

// New returns an Error about no particular rank.
func New(op string, code Code, detail string) *Error {
	return &Error{Op: op, Code: code, Rank: NoRank, Detail: detail}
}

// Newf is New with a formatted detail. A %w verb sets the cause.
func Newf(op string, code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Op: op, Code: code, Rank: NoRank, Detail: err.Error(), Err: errors.Unwrap(err)}
}

// Wrap returns an Error with a cause. The code is taken from the cause when it carries one (a context's end included),
// else it is the given one.
func Wrap(op string, code Code, err error) *Error {
	if c := CodeOf(err); c != Unknown {
		code = c
	}
	return &Error{Op: op, Code: code, Rank: NoRank, Err: err}
}

// Error returns one line: operation, key, what happened, facts, cause.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.head())
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	b.WriteString(e.Code.String())
	if (e.Rank > 0 || e.Rank == 0 && e.Op != "") && (e.Peer != "" || !strings.HasPrefix(e.Detail, fmt.Sprintf("rank %d ", e.Rank))) {
		fmt.Fprintf(&b, ": rank %d", e.Rank)
	}
	if e.Peer != "" {
		fmt.Fprintf(&b, " (peer %s)", e.Peer)
	}
	if e.Detail != "" {
		b.WriteString(": " + e.shortened(e.Detail))
	} else if e.Err != nil && !errors.Is(e.Code, e.Err) {
		// A cause of the same operation and code has both already.
		text := strings.TrimPrefix(e.Err.Error(), e.Op+": "+e.Code.String()+": ")
		if text != e.Code.String() {
			b.WriteString(": " + e.shortened(text))
		}
	}
	return b.String()
}

// shortened returns a text about e without the words of its code where the text repeats a cause that has the same code.
func (e *Error) shortened(text string) string {
	cause, ok := errors.AsType[*Error](e.Err)
	if !ok || cause.Code != e.Code {
		return text
	}
	whole := cause.Error()
	head := cause.head()
	if rest, ok := strings.CutPrefix(whole, head+": "+e.Code.String()+": "); ok && head != "" {
		return strings.Replace(text, whole, head+": "+rest, 1)
	}
	return text
}

// head is what stands before the code in the text.
func (e *Error) head() string {
	if e.Key == "" {
		return e.Op
	}
	return fmt.Sprintf("%s %q", e.Op, e.Key)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the error's code, or the context error that belongs to it: a timeout matches
// context.DeadlineExceeded and a cancellation context.Canceled, whatever the cause was.
func (e *Error) Is(target error) bool {
	switch target {
	case context.DeadlineExceeded:
		return e.Code == DeadlineExceeded
	case context.Canceled:
		return e.Code == Canceled
	}
	code, ok := target.(Code)
	return ok && code == e.Code
}

// CodeOf returns the code that err carries: that of the first Error or Code in its chain, or the one that belongs to a
// context error; Unknown when there is none, and for nil.
func CodeOf(err error) Code {
	if err == nil {
		return Unknown
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	if c, ok := errors.AsType[Code](err); ok {
		return c
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return Canceled
	}
	return Unknown
}

// FromContext returns the error of an operation whose context has ended, or nil if ctx has not ended. Its code is that of
// ctx.Err(), whatever the cause is, so that errors.Is(err, ctx.Err()) always holds. The cause is in the chain, and its
// rank and address are copied.
func FromContext(ctx context.Context, op string) error {
	if ctx.Err() == nil {
		return nil
	}
	return Ended(ctx, op)
}

// Ended is FromContext of a context that is known to have ended, for callers that add to the error. It is never nil.
func Ended(ctx context.Context, op string) *Error {
	cause := context.Cause(ctx)
	e := &Error{Op: op, Code: Canceled, Rank: NoRank, Err: cause}
	switch {
	case cause == nil:
		e.Code, e.Detail = Internal, "taken for the end of a context that is alive"
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		e.Code = DeadlineExceeded
	}
	if about, ok := errors.AsType[*Error](cause); ok {
		e.Rank, e.Peer = about.Rank, about.Peer
	}
	return e
}
