// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpcproof_test runs the rpc commands on worlds of real PyTorch, and shows weaknesses of PyTorch's references that
// a Go worker does not share, beside PyTorch.
package rpcproof_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// member is a PyTorch worker that serves until it is told to leave.
const member = `
import os, sys
os.environ["TP_SOCKET_IFNAME"] = "lo"
import torch
import torch.distributed.rpc as rpc
name, rank, size, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) or None, int(sys.argv[4])
options = rpc.TensorPipeRpcBackendOptions(init_method="tcp://127.0.0.1:%d" % port, rpc_timeout=30)
rpc.init_rpc(name, rank=rank, world_size=size, rpc_backend_options=options)
print("joined", flush=True)
for line in sys.stdin:
    if line.strip() == "who":
        print(" ".join(sorted(w.name for w in rpc.api._get_current_rpc_agent().get_worker_infos())), flush=True)
    else:
        break
rpc.shutdown()
print("left", flush=True)
sys.stdin.readline()
`

// world starts PyTorch workers py0, py1 and so on.
func world(t *testing.T, tr *torchtest.Torch, count int, static bool) (port int, workers []*torchtest.Proc) {
	t.Helper()
	port = testkit.FreePort(t)
	size := 0
	if static {
		size = count
	}
	for rank := range count {
		p := tr.Start(t, torchtest.Script{
			Source: member, Args: []string{"py" + strconv.Itoa(rank), strconv.Itoa(rank), strconv.Itoa(size), strconv.Itoa(port)},
			Modules: map[string]string{
				"jobs": "def greet(who, times=1):\n    return ['hello ' + who] * times\ndef fail():\n    raise ValueError('on purpose')\n",
			},
		})
		workers = append(workers, p)
		if !static {
			p.Expect(t, "joined")
		}
	}
	if static {
		for _, p := range workers {
			p.Expect(t, "joined")
		}
	}
	return port, workers
}

// leave lets workers shut down, and ends their processes when all have: the last thing that PyTorch does in a static world's shutdown is to
// read the store, after all have met there for the last time, and the store goes with the process of py0.
func leave(t *testing.T, workers []*torchtest.Proc) {
	t.Helper()
	for _, p := range workers {
		p.Send(t, "leave")
	}
	for _, p := range workers {
		p.Expect(t, "left")
	}
	for _, p := range workers {
		p.Send(t, "end")
		p.MustExit(t, 30*time.Second)
	}
}

// TestCallIntoDynamicWorld joins a running PyTorch world from the command line, calls and leaves.
func TestCallIntoDynamicWorld(t *testing.T) {
	program := testkit.BuildProgram(t, "cmd/cohort")
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		port, workers := world(t, tr, 2, false)
		addr := "127.0.0.1:" + strconv.Itoa(port)
		code, out, complaint := testkit.RunProgram(t, program, "rpc", "ls", "--addr", addr)
		if code != 0 || !strings.Contains(out, "dynamic world, round 0, 2 workers") || !strings.Contains(out, "py1") {
			t.Errorf("ls: %d, %s %s", code, out, complaint)
		}
		for _, c := range []struct {
			args []string
			code int
			want string
		}{
			{[]string{"py0", "math.sqrt", "2.25"}, 0, "1.5\n"},
			{[]string{"py1", "jobs.greet", `"you"`, "--kw", "times=2"}, 0, `["hello you","hello you"]` + "\n"},
			{[]string{"py0", "torch.ones", "2"}, 0, `{"tensor":{"dtype":"float32","elements":[1,1],"shape":[2]}}` + "\n"},
			{[]string{"py0", "jobs.fail"}, 1, "ValueError: on purpose"},
			{[]string{"py0", "jobs.nosuch"}, 4, "nosuch"},
		} {
			args := append([]string{"rpc", "call", "--addr", addr, "--listen", "127.0.0.1:0", "--timeout", "30s"}, c.args...)
			code, out, complaint := testkit.RunProgram(t, program, args...)
			if code != c.code || !strings.Contains(out+complaint, c.want) {
				t.Errorf("%v: exit %d, %q, %q; want %d, %q", c.args, code, out, complaint, c.code, c.want)
			}
		}
		// Nothing is left of the visitor.
		for _, p := range workers {
			p.Send(t, "who")
			p.Expect(t, "py0 py1")
		}
		if _, out, _ := testkit.RunProgram(t, program, "rpc", "ls", "--addr", addr); strings.Contains(out, "cohort_cli") {
			t.Errorf("the visitor is still listed: %s", out)
		}
		// No worker waits for the others when it leaves a dynamic world, and py0 hosts the store: it is the last.
		leave(t, workers[1:])
		leave(t, workers[:1])
	})
}

// TestListStaticWorld reads a static world of PyTorch workers, and calls one from outside.
func TestListStaticWorld(t *testing.T) {
	program := testkit.BuildProgram(t, "cmd/cohort")
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		port, workers := world(t, tr, 2, true)
		addr := "127.0.0.1:" + strconv.Itoa(port)
		code, out, complaint := testkit.RunProgram(t, program, "rpc", "ls", "--addr", addr, "--json")
		for rank := range 2 {
			if entry := fmt.Sprintf(`{"id":%d,"name":"py%d","addr":"127.0.0.1:`, rank, rank); code != 0 || !strings.Contains(out, entry) {
				t.Errorf("ls: %d, %s %s; want %s", code, out, complaint, entry)
			}
		}
		code, out, complaint = testkit.RunProgram(t, program, "rpc", "call", "--addr", addr, "py0", "math.sqrt", "4")
		if code != 0 || strings.TrimSpace(out) != "2" {
			t.Errorf("call: %d, %s %s", code, out, complaint)
		}
		code, out, complaint = testkit.RunProgram(t, program, "rpc", "refs", "--addr", addr)
		if code != 0 || !strings.Contains(out, "PyTorch workers do not report theirs: py0, py1") {
			t.Errorf("refs: %d, %s %s", code, out, complaint)
		}
		leave(t, workers)
	})
}
