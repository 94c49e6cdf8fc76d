// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous_test

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/cli"
	"github.com/cohort-dist/cohort/internal/cli/command"
	"github.com/cohort-dist/cohort/internal/freeport"
	"github.com/cohort-dist/cohort/internal/torchtest"
)

// TestCommandsOnTorchStore runs the store commands on PyTorch's own servers.
func TestCommandsOnTorchStore(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		port := freeport.Get(t)
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
		keys := step{line: "keys", err: "this server cannot list its keys", code: command.ExitFailure}
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
			{line: "cas leader b c", out: "a\n", code: command.ExitUnchanged},
			{line: "append log one"},
			{line: "append log two"},
			{line: "get log", out: "onetwo\n"},
			{line: "wait log steps"},
			{line: "wait --timeout 300ms never", err: "timeout", code: command.ExitTimeout},
			{line: "get --now never", err: "not found", code: command.ExitNotFound},
			{line: "delete log", out: ""},
			{line: "delete log", err: "not found", code: command.ExitNotFound},
			keys,
			{line: "top --once", err: "is PyTorch's own and does not tell who waits", code: command.ExitFailure},
			{line: "clear --yes", err: "is PyTorch's own, which cannot be cleared", code: command.ExitFailure},
			{line: "set from-go bonjour"},
		} {
			args := append([]string{"store"}, strings.Split(step.line, " ")...)
			args = append(args[:2:2], append([]string{"--addr", "127.0.0.1:" + strconv.Itoa(port)}, args[2:]...)...)
			var out, complaint bytes.Buffer
			code := cli.Main(args, cli.IO{In: strings.NewReader(""), Out: &out, Err: &complaint, Getenv: func(string) string { return "" }})
			if code != step.code || out.String() != step.out || !strings.Contains(complaint.String(), step.err) {
				t.Errorf("%s: exit %d, %q, %q; want %d, %q, %q", step.line, code, out.String(), complaint.String(), step.code, step.out, step.err)
			}
		}
		p.Expect(t, "bonjour")
		p.Send(t, "")
	})
}
