// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcwire

import (
	"strings"

	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/rpc/py"
)

// A Python caller that reads the class of an exception and does not have it loses the exception with its text: unpickling
// fails, or PyTorch returns the AttributeError as the value of the call. So only classes that every Python has are written
// as they are. Others are written as an expression that looks for the class and gives RuntimeError if that exception does not exist:
//
//	next(filter(BaseException.__subclasscheck__, filter(inspect.isclass, [located, RuntimeError])))
//
// To look for it imports its module, which can fail with any exception. PyTorch's own function for calls turns that into a value,
// which is not a class, so located is
//
//	_run_function(PythonUDF(pydoc.locate, ("module.Class",), {}))
var (
	next         = py.Global{Module: "builtins", Name: "next"}
	filter       = py.Global{Module: "builtins", Name: "filter"}
	isException  = py.Global{Module: "builtins", Name: "BaseException.__subclasscheck__"}
	isClass      = py.Global{Module: "inspect", Name: "isclass"}
	runFunction  = py.Global{Module: rpcInternal, Name: "_run_function"}
	locate       = py.Global{Module: "pydoc", Name: "locate"}
	runtimeError = py.Global{Module: "builtins", Name: "RuntimeError"}
)

// plainExceptions are the builtin exceptions of every Python 3 that can be made from a text, which is all that PyTorch's
// caller makes them from.
var plainExceptions = names(`ArithmeticError AssertionError AttributeError BaseException BlockingIOError BrokenPipeError BufferError
	BytesWarning ChildProcessError ConnectionAbortedError ConnectionError ConnectionRefusedError ConnectionResetError
	DeprecationWarning EOFError EnvironmentError Exception FileExistsError FileNotFoundError FloatingPointError FutureWarning
	GeneratorExit IOError ImportError ImportWarning IndentationError IndexError InterruptedError IsADirectoryError KeyError
	KeyboardInterrupt LookupError MemoryError ModuleNotFoundError NameError NotADirectoryError NotImplementedError OSError
	OverflowError PendingDeprecationWarning PermissionError ProcessLookupError RecursionError ReferenceError ResourceWarning
	RuntimeError RuntimeWarning StopAsyncIteration StopIteration SyntaxError SyntaxWarning SystemError SystemExit TabError
	TimeoutError TypeError UnboundLocalError UnicodeError UnicodeWarning UserWarning ValueError Warning ZeroDivisionError`)

// otherExceptions are the builtin exceptions that cannot be made from a text.
var otherExceptions = names("BaseExceptionGroup ExceptionGroup UnicodeDecodeError UnicodeEncodeError UnicodeTranslateError")

func names(list string) map[string]bool {
	set := map[string]bool{}
	for name := range strings.FieldsSeq(list) {
		set[name] = true
	}
	return set
}

// exceptionClass is how the class of an exception is written.
func exceptionClass(class py.Global) any {
	builtin := isBuiltins(class.Module)
	switch {
	case builtin && plainExceptions[class.Name]:
		return class
	case builtin && otherExceptions[class.Name]:
		return runtimeError
	}
	found := pickle.Call(runFunction, pickle.Call(pythonUDF, locate, pickle.NewTuple(class.Module+"."+class.Name), &pickle.Dict{}))
	return pickle.Call(next, pickle.Call(filter, isException, pickle.Call(filter, isClass, pickle.NewList(found, runtimeError))))
}

// parseExceptionClass reads what exceptionClass or a PyTorch worker has written.
func parseExceptionClass(v any) (py.Global, bool) {
	if class, ok := callee(v); ok {
		return class, true
	}
	for _, fn := range []py.Global{next, filter, filter} {
		v = lastArgument(v, fn)
	}
	list, _ := v.(*pickle.List)
	if list == nil || len(list.Items) == 0 {
		return py.Global{}, false
	}
	udf, _ := lastArgument(list.Items[0], runFunction).(*pickle.Object)
	if udf == nil || udf.Class != any(pythonUDF) || len(udf.Args.Items) != 3 {
		return py.Global{}, false
	}
	args, _ := udf.Args.Items[1].(*pickle.Tuple)
	if args == nil || len(args.Items) != 1 {
		return py.Global{}, false
	}
	path, ok := args.Items[0].(string)
	return py.Func(path), ok
}

// lastArgument returns the last argument of a call of fn, or nil if v is something else.
func lastArgument(v any, fn py.Global) any {
	call, _ := v.(*pickle.Object)
	if call == nil || call.How != pickle.Reduce || !pickle.IsGlobal(call.Class, fn.Module, fn.Name) || len(call.Args.Items) == 0 {
		return nil
	}
	return call.Args.Items[len(call.Args.Items)-1]
}
