// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"errors"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/rpcwire"
)

// TestTextOfPythonException keeps what an exception said, as PyTorch's callee writes it: unescaped, and nothing at all for an
// exception without a text.
func TestTextOfPythonException(t *testing.T) {
	for _, said := range []string{"", "plain", `C:\new\table \x41`, "two\nlines", "ValueError: again"} {
		last := "ValueError"
		if said != "" {
			last += ": " + said
		}
		text := "On WorkerInfo(id=0, name=py0):\nValueError('...')\nTraceback (most recent call last):\n" +
			"  File \"a.py\", line 1, in f\n    raise ValueError(x)\n" + last + "\n"
		e := remoteError("py0", &rpcwire.RemoteException{Msg: text, Class: rpcwire.Global{Module: "builtins", Name: "ValueError"}})
		if e.Kind != "ValueError" || e.Message != said {
			t.Errorf("%q became %s, %q", said, e.Kind, e.Message)
		}
	}
}

// TestExceptionWithoutText is written as Python writes one, and comes back from a Go worker on either transport.
func TestExceptionWithoutText(t *testing.T) {
	transports(t, func(t *testing.T, opts ...Option) {
		t.Helper()
		reg := NewRegistry().MustHandle("v.fail", func(text string) error { return Raise("ValueError", "%s", text) })
		agents := world(t, 2, false, func(int) *Registry { return reg }, opts...)
		for _, said := range []string{"", `a\nb`, "two\nlines", "ü"} {
			_, err := Call[any](testContext(t), agents[0], "w1", "v.fail", said)
			remote, ok := errors.AsType[*RemoteError](err)
			if !ok || remote.Kind != "ValueError" || remote.Message != said {
				t.Errorf("%q became %#v", said, err)
			}
		}
		x := agents[1].exception(Raise("ValueError", ""), false)
		if text := unicodeUnescape(x.Msg); !strings.HasSuffix(text, "\nValueError\n") || !strings.Contains(text, "\nValueError('')\n") {
			t.Errorf("%q", text)
		}
		shutdown(t, agents)
	})
}
