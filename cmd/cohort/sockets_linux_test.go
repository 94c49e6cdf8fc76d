// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// listening returns the addresses at which a process or one of its descendants accepts connections.
func listening(t *testing.T, root int) []string {
	t.Helper()
	parents := map[int]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		b, _ := os.ReadFile(file)
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])); len(f) > 1 {
			parents[pid], _ = strconv.Atoi(f[1])
		}
	}
	ours := map[string]bool{}
	for pid := range parents {
		at := pid
		for at > 1 && at != root {
			at = parents[at]
		}
		if at != root {
			continue
		}
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, link := range links {
			to, _ := os.Readlink(link)
			if inode, found := strings.CutPrefix(to, "socket:["); found {
				ours[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	var all []string
	for addr, inode := range portowner.Listeners() {
		if ours[inode] {
			all = append(all, netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()).String())
		}
	}
	slices.Sort(all)
	return all
}

// TestListening: a job on one node listens at the store's port of the loopback address alone, and the nodes of a larger job at the
// rendezvous and the store, both at the address that the user named.
func TestListening(t *testing.T) {
	t.Parallel()
	program := testkit.BuildProgram(t, "cmd/cohort")
	dir := t.TempDir()
	start := func(name string, options ...string) (pid int, port func() string) {
		script := fmt.Sprintf(`echo $MASTER_PORT > %s/%s.tmp; mv %s/%s.tmp %s/%s; sleep 1000`, dir, name, dir, name, dir, name)
		cmd := exec.Command(program, append(append([]string{"run", "--evidence", "-"}, options...), "sh", "-c",
			strings.ReplaceAll(script, "$", "$$"))...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return cmd.Process.Pid, func() string {
			for begin := time.Now(); time.Since(begin) < 2*time.Minute; time.Sleep(20 * time.Millisecond) {
				if text, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
					return strings.TrimSpace(string(text))
				}
			}
			t.Fatalf("the worker of %s does not come", name)
			return ""
		}
	}
	alone, port := start("alone")
	if want, got := []string{"127.0.0.1:" + port()}, listening(t, alone); !slices.Equal(got, want) {
		t.Errorf("a job on one node listens at %v, want %v", got, want)
	}
	// 127.0.0.2 stands for the address of a network.
	endpoint := fmt.Sprintf("127.0.0.2:%d", testkit.FreePort(t))
	options := []string{"--nnodes", "2", "--rdzv-endpoint", endpoint}
	host, atHost := start("host", options...)
	other, atOther := start("other", append(options, "--rdzv-conf", "is_host=0")...)
	want := []string{endpoint, "127.0.0.2:" + atHost()}
	slices.Sort(want)
	_ = atOther()
	if got := listening(t, host); !slices.Equal(got, want) {
		t.Errorf("the host of two nodes listens at %v, want %v", got, want)
	}
	if got := listening(t, other); len(got) > 0 {
		t.Errorf("the other of two nodes listens at %v", got)
	}
}
