// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/rpcwire"
)

// RemoteError is the failure of a function at another worker: a Python exception or the error of a Go handler. A Go
// handler that returns one, or what [Raise] makes, raises that exception in a Python caller.
//
// errors.Is holds for [dist.Remote] and for Code.
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
	Code dist.Code

	hint string // what PyTorch adds for its callers
}

// Raise returns the error of a handler that a Python caller sees as an exception of the given class, such as
// "ValueError" or "mymodule.MyError".
func Raise(kind, format string, args ...any) *RemoteError {
	return &RemoteError{Kind: kind, Message: fmt.Sprintf(format, args...), Code: dist.Remote}
}

// Error returns worker, kind and message.
func (e *RemoteError) Error() string {
	var b strings.Builder
	b.WriteString("rpc: ")
	if e.Worker != "" {
		fmt.Fprintf(&b, "worker %q: ", e.Worker)
	}
	b.WriteString(e.Kind)
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	return b.String()
}

// Is reports whether target is dist.Remote or the error's code.
func (e *RemoteError) Is(target error) bool {
	code, ok := target.(dist.Code)
	if ok {
		return code == dist.Remote || code == e.Code
	}
	switch target {
	case context.DeadlineExceeded:
		return e.Code == dist.DeadlineExceeded
	case context.Canceled:
		return e.Code == dist.Canceled
	}
	return false
}

// As lets errors.As find the code of a RemoteError.
func (e *RemoteError) As(target any) bool {
	if p, ok := target.(*dist.Code); ok {
		*p = e.Code
		return true
	}
	return false
}

// goErrors is the module of the exception class that stands for the error of a Go handler on the way to a Go caller; the
// code's number follows.
const goErrors = "cohort.error."

// pythonKinds are the exceptions that a Python caller gets for the codes of a handler's error.
var pythonKinds = map[dist.Code]string{
	dist.InvalidArgument: "ValueError", dist.NotFound: "AttributeError", dist.NotSupported: "NotImplementedError",
	dist.Mismatch: "TypeError", dist.DeadlineExceeded: "TimeoutError",
}

// describe turns the error of a handler into kind, message, stack and code.
func describe(err error) *RemoteError {
	if remote, ok := errors.AsType[*RemoteError](err); ok {
		out := *remote
		if out.Code == dist.Unknown {
			out.Code = dist.Remote
		}
		if out.Kind == "" {
			out.Kind = "RuntimeError"
		}
		return &out
	}
	out := &RemoteError{Kind: "RuntimeError", Message: err.Error(), Code: dist.CodeOf(err)}
	if kind := pythonKinds[out.Code]; kind != "" {
		out.Kind = kind
	}
	if out.Code == dist.Unknown {
		out.Code = dist.Remote
	}
	return out
}

// panicError is a panic of a handler.
type panicError struct{ value any }

func (p *panicError) Error() string { return fmt.Sprintf("panic: %v", p.value) }

// exceptionClass returns the class that a kind names.
func exceptionClass(kind string) rpcwire.Global {
	if !strings.ContainsAny(kind, ".:") {
		return rpcwire.Global{Module: "builtins", Name: kind}
	}
	return rpcwire.Func(kind)
}

// exception is what a callee answers: PyTorch's own text, so that a Python caller sees what it is used to.
func (a *Agent) exception(err error, toGo bool) *rpcwire.RemoteException {
	if toGo {
		e := a.goException(err)
		return &rpcwire.RemoteException{Msg: e.text, Class: e.class}
	}
	e := describe(err)
	e.Message += e.hint
	class := exceptionClass(e.Kind)
	text := fmt.Sprintf("On WorkerInfo(id=%d, name=%s):\n%s(%s)\n%s\n", a.id, a.name, class.Name, rpcwire.ReprString(e.Message), a.traceback(e, class))
	return &rpcwire.RemoteException{Msg: unicodeEscape(text), Class: class}
}

const tracebackHead = "Traceback (most recent call last):"

// traceback is what Python would print below an exception.
func (a *Agent) traceback(e *RemoteError, class rpcwire.Global) string {
	stack := strings.TrimRight(e.Stack, "\n")
	if strings.HasPrefix(stack, tracebackHead) { // of a Python function that the handler called
		return stack
	}
	if stack == "" {
		worker := a.name
		if e.Worker != "" {
			worker = e.Worker
		}
		stack = "  In a handler of the Go worker " + strconv.Quote(worker)
	}
	name, said := class.String(), e.Message
	if class.Module == "builtins" {
		name = class.Name
	}
	if name == "KeyError" { // the one class whose text is the repr of its argument
		said = rpcwire.ReprString(said)
	}
	if said != "" {
		name += ": " + said
	}
	return tracebackHead + "\n" + stack + "\n" + name
}

// goException is the error of a Go worker on the way to another one: the class has the code, the text the rest.
type goException struct {
	class rpcwire.Global
	text  string
}

func (a *Agent) goException(err error) goException {
	e := describe(err)
	if ref, ok := errors.AsType[*RefError](err); ok {
		e.Kind = reasonKind + strconv.Itoa(int(ref.Reason))
	}
	worker := a.name
	if e.Worker != "" {
		worker = e.Worker
	}
	return goException{
		class: rpcwire.Global{Module: goErrors + strconv.Itoa(int(e.Code)), Name: e.Kind},
		text:  worker + "\x00" + e.Message + "\x00" + e.Stack,
	}
}

// encode is the form inside an EXCEPTION, which has a text only.
func (e goException) encode() string { return e.class.Module + "\x00" + e.class.Name + "\x00" + e.text }

// restore is the inverse of goException; it reports false for an exception of a PyTorch worker.
func (e goException) restore(worker string) (*RemoteError, bool) {
	number, ok := strings.CutPrefix(e.class.Module, goErrors)
	if !ok {
		return nil, false
	}
	code, _ := strconv.ParseUint(number, 10, 8)
	out := &RemoteError{Kind: e.class.Name, Worker: worker, Code: dist.Code(code), Message: e.text}
	if parts := strings.SplitN(e.text, "\x00", 3); len(parts) == 3 {
		out.Worker, out.Message, out.Stack = parts[0], parts[1], parts[2]
	}
	return out, true
}

// remoteError is the caller's side of exception.
func remoteError(worker string, x *rpcwire.RemoteException) *RemoteError {
	if e, ok := (goException{class: x.Class, text: x.Msg}).restore(worker); ok {
		return e
	}
	e := &RemoteError{Kind: x.Class.Name, Worker: worker, Code: dist.Remote}
	if x.Class.Module != "builtins" && x.Class.Module != "exceptions" {
		e.Kind = x.Class.Module + "." + x.Class.Name
	}
	text := x.Msg // as it is from PyTorch, whose callers unescape it all the same
	if !strings.Contains(text, "\n") {
		text = unicodeUnescape(text) // of a Go worker on PyTorch's transport
	}
	e.Message = text
	if head, rest, ok := strings.Cut(text, "\n"); ok && strings.HasPrefix(head, "On WorkerInfo(") {
		e.Message = strings.TrimRight(rest, "\n")
		if at := strings.Index(rest, tracebackHead); at >= 0 {
			e.Message, e.Stack = strings.TrimRight(rest[:at], "\n"), rest[at:]
		}
	}
	if said, ok := lastLine(e.Stack, x.Class.Name); ok {
		e.Message = said
	}
	switch { // an exception from inside the function is the function's own business
	case x.Class.Name == "AttributeError" && notDecoded(text):
		e.Code = dist.NotFound
		e.Message, _, _ = strings.Cut(e.Message, " Default RPC pickler") // the rest is about pickles, and in the stack
	case !raisedByCall(e.Stack):
	case x.Class.Name == "AttributeError" && strings.Contains(text, "has no attribute"):
		e.Code = dist.NotFound
	case x.Class.Name == "TypeError":
		e.Code = dist.InvalidArgument
	}
	return e
}

// raisedByCall reports whether calling the function failed, not the function: the last frame is PyTorch's.
func raisedByCall(stack string) bool {
	const frame = "\n  File \""
	at := strings.LastIndex(stack, frame)
	if at < 0 {
		return true // of a Go worker on PyTorch's transport
	}
	last, _, _ := strings.Cut(stack[at+len(frame):], "\n")
	return strings.Contains(last, "/torch/distributed/rpc/") && (strings.Contains(last, ", in _run_function") || strings.Contains(last, ", in _local_invoke"))
}

// notDecoded recognises the answer to a call of a function that does not exist: it comes before the arguments, so they
// were not decoded.
func notDecoded(text string) bool { return strings.Contains(text, "RPC pickler does not serialize") }

// lastLine finds what a traceback says at its end: "KeyError: 'a'".
func lastLine(stack, class string) (string, bool) {
	lines := strings.Split(strings.TrimRight(stack, "\n"), "\n")
	for i, line := range slices.Backward(lines) {
		name, said, _ := strings.Cut(line, ": ") // an exception without a text is its name alone
		if name == class || strings.HasSuffix(name, "."+class) {
			return strings.Join(append([]string{said}, lines[i+1:]...), "\n"), true
		}
	}
	return "", false
}

// exceptionError turns an EXCEPTION message into an error.
func exceptionError(op, fn, worker string, payload []byte) error {
	class, text := rpcwire.DecodeException(payload)
	if class == rpcwire.ErrorTimeout {
		e := dist.New(op, dist.DeadlineExceeded, text)
		e.Peer, e.Key = worker, fn
		return e
	}
	if parts := strings.SplitN(text, "\x00", 3); len(parts) == 3 {
		e := goException{class: rpcwire.Global{Module: parts[0], Name: parts[1]}, text: parts[2]}
		if remote, ok := e.restore(worker); ok {
			return restoreReason(remote)
		}
	}
	return nodeError(worker, text)
}

// nodeError reads PyTorch's text of an error outside the user's function. The text ends in a stack: pybind11's, behind a
// Python exception, or that of C++.
func nodeError(worker, text string) *RemoteError {
	e := &RemoteError{Kind: "RuntimeError", Message: text, Worker: worker, Code: dist.Remote}
	if rest, ok := strings.CutPrefix(text, "Error on Node "); ok {
		if _, rest, ok = strings.Cut(rest, ": "); ok {
			e.Message = rest
		}
	}
	if said, stack, ok := strings.Cut(e.Message, "\n\nAt:\n"); ok {
		if kind, message, ok := strings.Cut(said, ": "); ok && isClassName(kind) {
			e.Kind, e.Message, e.Stack = kind, message, stack
		}
	} else if said, stack, ok := strings.Cut(e.Message, "\nException raised from "); ok {
		e.Message, e.Stack = said, "Exception raised from "+stack
	}
	switch {
	case e.Kind == "ModuleNotFoundError", strings.HasPrefix(e.Message, "Cannot find matching operator"),
		strings.HasPrefix(e.Message, "attempted to get undefined function"):
		e.Code = dist.NotFound
	case strings.HasPrefix(e.Message, "expected ") && strings.Contains(e.Message, " inputs, but got "):
		e.Code = dist.InvalidArgument
	}
	return e
}

// isClassName reports whether s can be the name of a Python class: words with dots between them.
func isClassName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return c != '.' && c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z')
	})
}

// unicodeEscape makes a text that survives Python's decode("unicode_escape"): the caller's side applies it.
func unicodeEscape(s string) string {
	var b strings.Builder
	for _, c := range s {
		switch {
		case c == '\\':
			b.WriteString(`\\`)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case c >= 0x20 && c < 0x7f:
			b.WriteRune(c)
		case c < 0x100:
			fmt.Fprintf(&b, `\x%02x`, c)
		case c < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, c)
		default:
			fmt.Fprintf(&b, `\U%08x`, c)
		}
	}
	return b.String()
}

// unicodeUnescape is the inverse. What is not an escape stays as it is.
func unicodeUnescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 >= len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[i]]
		if digits > 0 && i+digits < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+1+digits], 16, 32); err == nil {
				b.WriteRune(rune(n)) //nolint:gosec // at most 32 bits
				i += digits
				continue
			}
		}
		switch s[i] {
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case '\\', '\'', '"':
			b.WriteByte(s[i])
		default:
			b.WriteByte('\\')
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

func sortedNames[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func isNotFound(err error) bool { return errors.Is(err, dist.NotFound) }
