// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// TestCommandsOnTorchStore runs the store commands on PyTorch's own servers.
func TestCommandsOnTorchStore(t *testing.T) {
	program := testkit.BuildProgram(t, "cmd/cohort")
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		port := testkit.FreePort(t)
		p := torch.Start(t, torchtest.Script{Source: `
import sys
import torch, torch.distributed as dist
kw = {} if torch.__version__.startswith("1.") else {"use_libuv": False}
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), 1, True, **kw)
store.set("from-python", "hello")
print("ready", flush=True)
print(store.get("from-go").decode(), flush=True)
sys.stdin.readline()
`, Args: []string{strconv.Itoa(port)}})
		p.Expect(t, "ready")
		type step struct {
			line, out, err string
			code           int
		}
		keys := step{line: "keys", err: "this server cannot list its keys", code: 1}
		if torch.About(t).Since(2, 10) {
			keys = step{line: "keys", out: "from-python\nleader\nsteps\n"}
		}
		for _, step := range []step{
			{line: "get from-python", out: "hello\n"},
			{line: "get --raw /from-python", out: "hello\n"},
			{line: "keys --count", out: "2\n"},
			{line: "add --raw init/ 0", out: "1\n"},
			{line: "add steps 5", out: "5\n"},
			{line: "cas leader  a", out: "a\n"},
			{line: "cas leader b c", out: "a\n", code: 5},
			{line: "append log one"},
			{line: "append log two"},
			{line: "get log", out: "onetwo\n"},
			{line: "wait log steps"},
			{line: "wait --timeout 300ms never", err: "timeout", code: 3},
			{line: "get --now never", err: "not found", code: 4},
			{line: "delete log", out: ""},
			{line: "delete log", err: "not found", code: 4},
			keys,
			{line: "top --once", err: "is PyTorch's own and does not report who waits", code: 1},
			{line: "clear --yes", err: "is PyTorch's own, which cannot be cleared", code: 1},
			{line: "set from-go bonjour"},
		} {
			args := append([]string{"store"}, strings.Split(step.line, " ")...)
			args = append(args[:2:2], append([]string{"--addr", "127.0.0.1:" + strconv.Itoa(port)}, args[2:]...)...)
			code, out, complaint := testkit.RunProgram(t, program, args...)
			if code != step.code || out != step.out || !strings.Contains(complaint, step.err) {
				t.Errorf("%s: exit %d, %q, %q; want %d, %q, %q", step.line, code, out, complaint, step.code, step.out, step.err)
			}
		}
		p.Expect(t, "bonjour")
		p.Send(t, "")
	})
}
