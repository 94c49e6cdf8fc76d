// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestGPUErrors: what the kernel has logged since the job began is reported, with the rank whose process it was.
func TestGPUErrors(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "kmsg")
	now := sinceBoot().Microseconds()
	for name, c := range map[string]struct {
		micros int64
		text   string
		want   string
	}{
		"lost": {
			now, fmt.Sprintf("79, pid=%d, name=python3, GPU has fallen off the bus.", os.Getpid()),
			"79 rank 3 fatal: it has fallen off the bus",
		},
		"lost, of no rank": {now, "79, pid=1, name=init, GPU has fallen off the bus.", "79 rank -1 fatal: it has fallen off the bus"},
		"survived":         {now, "63, pid='<unknown>', name=<unknown>, Row Remapper", "63 rank -1: Row Remapper"},
		"long ago":         {1, "79, pid=1, name=init, GPU has fallen off the bus.", ""},
	} {
		if err := os.WriteFile(log, fmt.Appendf(nil, "3,1,%d,-;NVRM: Xid (PCI:0000:3b:00): %s\n", c.micros, c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, e := range gpuErrors(log, "here", []verdict.Rank{{Rank: 3, PID: os.Getpid()}}) {
			got = fmt.Sprintf("%d rank %d", e.Number, e.Rank)
			if e.Fatal {
				got += " fatal"
			}
			got += ": " + e.Words
			if e.Age > time.Hour || e.Device != "0000:3b:00" || e.Host != "here" {
				t.Errorf("%s: %+v", name, e)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestTracer: the debugger of a process is read from what the kernel reports of it.
func TestTracer(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	for name, text := range map[string]string{
		"7/status": "Name:\tpython3\nTracerPid:\t9\n",
		"8/status": "Name:\tpython3\nTracerPid:\t0\n", "9/comm": "gdb\n",
	} {
		if err := os.MkdirAll(filepath.Join(proc, filepath.Dir(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if d := tracer(proc, 7); d == nil || d.PID != 9 || d.Command != "gdb" {
		t.Errorf("the debugger is %+v", d)
	}
	if d := tracer(proc, 8); d != nil {
		t.Errorf("a process without a debugger has %+v", d)
	}
}

// TestLimits: a cgroup that has nothing more to give is reported, and one that has is not.
func TestLimits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		used, limit, kills int64
		throttled          time.Duration // between the looks
		want               []string
	}{
		"enough":     {50 << 20, 100 << 20, 0, 0, nil},
		"no limit":   {50 << 20, 0, 0, 0, nil},
		"nearly all": {99 << 20, 100 << 20, 0, 0, []string{"the cgroup of ranks 4,5 uses 99 MiB of its memory limit of 100 MiB"}},
		"one killed": {
			50 << 20, 100 << 20, 1, 0,
			[]string{"the kernel has killed 1 process of the cgroup of ranks 4,5 because it was out of memory"},
		},
		"several": {
			50 << 20, 100 << 20, 3, 0,
			[]string{"the kernel has killed 3 processes of the cgroup of ranks 4,5 because it was out of memory"},
		},
		"little time": {50 << 20, 100 << 20, 0, 10 * time.Millisecond, nil},
		"no time at all": {
			50 << 20, 100 << 20, 0, time.Second,
			[]string{
				"the cgroup of ranks 4,5 has reached its CPU limit: its processes were throttled for 1s within 1s, summed over all CPUs",
			},
		},
	} {
		root := t.TempDir()
		write := func(file, text string) {
			path := filepath.Join(root, file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("proc/7/cgroup", "0::/job\n")
		write("proc/8/cgroup", "0::/job\n")
		write("sys/fs/cgroup/job/memory.events", "oom_kill "+strconv.FormatInt(c.kills, 10)+"\n")
		write("sys/fs/cgroup/job/memory.current", strconv.FormatInt(c.used, 10))
		write("sys/fs/cgroup/job/memory.max", map[bool]string{true: "max", false: strconv.FormatInt(c.limit, 10)}[c.limit == 0])
		write("sys/fs/cgroup/job/cpu.stat", "throttled_usec 1000000\n")
		ranks := []Rank{{Rank: 4, PID: 7}, {Rank: 5, PID: 8}}
		before := limitsOf(root, ranks)
		write("sys/fs/cgroup/job/cpu.stat", fmt.Sprintf("throttled_usec %d\n", (time.Second+c.throttled).Microseconds()))
		after := limitsOf(root, ranks)
		after.at = before.at.Add(time.Second)
		if got := after.since(before); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := limitsOf("/", []Rank{{PID: os.Getpid()}}).since(limits{}); slices.ContainsFunc(got,
		func(s string) bool { return strings.Contains(s, "held back") }) {
		t.Errorf("throttled without a look before: %q", got)
	}
}

// TestNoStore: a process that listens where a store should be is named: it is none if it has answered otherwise, and may be one, stopped or
// slow, if it has not answered. One that may be a rank's is not named.
func TestNoStore(t *testing.T) {
	t.Parallel()
	for greeting, want := range map[string]string{
		"":                        ") listens there and has not answered as a store does",
		"SSH-2.0-OpenSSH_9.6\r\n": ") listens there and is not a store",
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		go func() {
			for greeting != "" {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte(greeting))
				defer func() { _ = conn.Close() }()
			}
		}()
		addr := l.Addr().String()
		if got := noStore(t.Context(), addr, nil); !strings.HasPrefix(got, "pid "+strconv.Itoa(os.Getpid())+" (") ||
			!strings.HasSuffix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if got := noStore(t.Context(), addr, []int{os.Getpid()}); got != "" {
			t.Errorf("of a rank: %q", got)
		}
	}
}

// TestOnHost: a socket that listens on all addresses is reached at each of them.
func TestOnHost(t *testing.T) {
	t.Parallel()
	if got := onHost(netip.MustParseAddrPort("10.0.0.1:5")); len(got) != 1 || got[0].String() != "10.0.0.1:5" {
		t.Errorf("%v", got)
	}
	got := onHost(netip.MustParseAddrPort("0.0.0.0:5"))
	if !slices.Contains(got, netip.MustParseAddrPort("127.0.0.1:5")) ||
		slices.ContainsFunc(got, func(a netip.AddrPort) bool { return !a.Addr().Is4() }) {
		t.Errorf("%v", got)
	}
	if got := onHost(netip.MustParseAddrPort("[::]:5")); !slices.Contains(got, netip.MustParseAddrPort("127.0.0.1:5")) {
		t.Errorf("%v", got)
	}
}

// TestSilentAddress: of a store whose name has several addresses, one that does not answer does not keep from looking at the next.
func TestSilentAddress(t *testing.T) { // not parallel: it changes how names are looked up
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	port := l.Addr().(*net.TCPAddr).Port //nolint:errcheck,forcetypeassert // it is one
	testkit.SilentServer(t, net.IPv4(127, 0, 0, 2), port)
	testkit.ResolveTo(t, net.IPv4(127, 0, 0, 2), net.IPv4(127, 0, 0, 1))
	addr := net.JoinHostPort("store.test", strconv.Itoa(port))
	if got := noStore(t.Context(), addr, nil); !strings.HasSuffix(got, "listens there and has not answered as a store does") {
		t.Errorf("%q", got)
	}
}
