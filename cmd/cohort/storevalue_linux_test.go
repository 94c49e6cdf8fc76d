// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/store/tcpstore"
)

// TestValueOnATerminal: a value, which any client can have set, does not control the terminal; into a pipe it goes as it is.
func TestValueOnATerminal(t *testing.T) {
	t.Parallel()
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	addr := server.Addr().String()
	const value = "one\nt\x1b[2Jwo\x1b]0;title\a\u009b31m"
	if out, failed := exec.Command("cohort", "store", "set", "--addr", addr, "key", value).CombinedOutput(); failed != nil {
		t.Fatalf("%v %s", failed, out)
	}
	p := onTerminal(t, nil, "store", "get", "--addr", addr, "key")
	if code := p.ends(); code != 0 || !strings.Contains(p.text(), "one\r\nt\\x1b[2Jwo\\x1b]0;title\\a\\u009b31m\r\n") {
		t.Errorf("%d: %q", code, p.text())
	}
	if out, failed := exec.Command("cohort", "store", "get", "--addr", addr, "key").Output(); failed != nil || string(out) != value+"\n" {
		t.Errorf("%v: %q", failed, out)
	}
}
