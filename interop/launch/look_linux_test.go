// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/jobscan"
	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// BenchmarkLook measures the processor time of this process for each look at 8 ranks of PyTorch that wait for one of them: what the
// launcher's hang watch does ("glance"), what "cohort why" does besides ("examine"), what "cohort ps" does ("doing"), and the search
// for jobs that both begin with ("find"), which depends on the host's other processes.
//
//	COHORT_INTEROP=required go test ./interop/launch -run '^$' -bench Look -benchtime 50x
func BenchmarkLook(b *testing.B) {
	const ranks = 8
	store := hungJob(b, torchtest.V113, ranks)
	find := func() *jobscan.Job {
		all := jobscan.Find(b.Context())
		i := slices.IndexFunc(all, func(j jobscan.Job) bool { return j.Store == store })
		if i < 0 {
			b.Fatalf("no job %s", store)
		}
		return &all[i]
	}
	job := find()
	const apart = 50 * time.Millisecond // waiting costs nothing
	seen := jobscan.Glance(b.Context(), *job, apart)
	b.Log(verdict.Judge(seen).Sentence)
	for _, part := range []struct {
		name string
		look func()
	}{
		{"glance", func() { jobscan.Glance(b.Context(), *job, apart) }},
		{"examine", func() { jobscan.Examine(b.Context(), *job, apart) }},
		{"doing", func() { jobscan.Doing(b.Context(), *job) }},
		{"find", func() { find() }},
	} {
		b.Run(part.name, func(b *testing.B) {
			var all []time.Duration
			for b.Loop() {
				before := processorTime(b)
				part.look()
				all = append(all, processorTime(b)-before)
			}
			slices.Sort(all)
			b.ReportMetric(all[len(all)/2].Seconds()*1e3, "cpu-ms/look")
			b.ReportMetric(0, "ns/op") // mostly the time between two readings
		})
	}
}

// processorTime is what this process has used, in its own code and in the kernel.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// hungJob starts the ranks of look.py, and returns the address of their store when they are connected.
func hungJob(b *testing.B, torch *torchtest.Torch, ranks int) (store string) {
	b.Helper()
	torch.Need(b)
	text, err := scripts.ReadFile("testdata/look.py")
	if err != nil {
		b.Fatal(err)
	}
	script := filepath.Join(b.TempDir(), "look.py")
	if err := os.WriteFile(script, text, 0o600); err != nil {
		b.Fatal(err)
	}
	port := strconv.Itoa(testkit.FreePort(b))
	var outputs []*bufio.Reader
	for rank := range ranks {
		args := append(torch.Command(), script)
		cmd := exec.CommandContext(b.Context(), args[0], args[1:]...)
		cmd.Env = append(os.Environ(), fmt.Sprintf("RANK=%d", rank), fmt.Sprintf("WORLD_SIZE=%d", ranks),
			fmt.Sprintf("LOCAL_WORLD_SIZE=%d", ranks), "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port, "GLOO_SOCKET_IFNAME=lo",
			"OMP_NUM_THREADS=1")
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		outputs = append(outputs, bufio.NewReader(out))
	}
	for _, out := range outputs {
		if _, err := out.ReadString('\n'); err != nil {
			b.Fatal(err)
		}
	}
	time.Sleep(time.Second) // until all wait
	return net.JoinHostPort("127.0.0.1", port)
}
