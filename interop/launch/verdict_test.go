// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// byHand starts ranks without a launcher, as people do in several windows, and waits until they have come to the meeting.
func byHand(t *testing.T, torch *torchtest.Torch, addr string, port, world int, ranks ...int) {
	t.Helper()
	var all [][]string
	for _, rank := range ranks {
		all = append(all, rankEnv(rank, world, addr, port))
	}
	start(t, torch, all...)
}

// rankEnv is the environment of a rank that was started by hand.
func rankEnv(rank, world int, addr string, port int) []string {
	return []string{
		"RANK=" + strconv.Itoa(rank), "WORLD_SIZE=" + strconv.Itoa(world), "MASTER_ADDR=" + addr,
		"MASTER_PORT=" + strconv.Itoa(port),
	}
}

// start starts ranks with these environments.
func start(t *testing.T, torch *torchtest.Torch, ranks ...[]string) {
	t.Helper()
	dir := place(t, torch)
	for rank, env := range ranks {
		command := torch.Command()
		j := begin(t, dir, exec.Command(command[0], append(command[1:], "-u", dir+"/meet.py")...), append(env, "USE_LIBUV=0")...)
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("rank %d: %s%s", rank, j.out, j.err)
			}
			_ = j.Process.Kill()
			<-j.done
		})
		j.wait(j.out, "at the hang", 1)
	}
}

// TestWhyByHand: what goes wrong at the start of a job without a launcher.
func TestWhyByHand(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		t.Run("a duplicate rank", func(t *testing.T) {
			if torch.Name == "1.13" {
				torch.NotApplicable(t, "may end one of the two by the other's address, and nothing is left to see")
			}
			port := testkit.FreePort(t)
			byHand(t, torch, "127.0.0.1", port, 3, 0, 1, 1)
			why(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
				`^Rank 1 was started twice, as the processes \d+ and \d+: give each process its own RANK, from 0 to 2\.$`)
		})
		t.Run("another WORLD_SIZE", func(t *testing.T) {
			port := testkit.FreePort(t)
			start(t, torch, rankEnv(0, 3, "127.0.0.1", port), rankEnv(1, 2, "127.0.0.1", port)) // else rank 0 finds no peer and ends
			why(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
				`^Rank 1 has WORLD_SIZE 2 where rank 0 has 3: all ranks must have the same; rank.* in init_process_group \(meet\.py:\d+\)`)
		})
		t.Run("another MASTER_PORT", func(t *testing.T) {
			port, other := testkit.FreePort(t), testkit.FreePort(t)
			start(t, torch, rankEnv(0, 2, "127.0.0.1", port), rankEnv(1, 2, "127.0.0.1", other))
			why(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(other)),
				`^Rank 1 uses the store at 127\.0\.0\.1:\d+, and rank 0 of the same program \(process \d+\) uses 127\.0\.0\.1:\d+: `+
					`all ranks must have the same MASTER_ADDR and MASTER_PORT; rank 1 waits in init_process_group`)
		})
		t.Run("a dead store", func(t *testing.T) {
			port := testkit.FreePort(t)
			byHand(t, torch, "127.0.0.1", port, 2, 1)
			why(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
				`^Rank 1 cannot reach the store at 127\.0\.0\.1:\d+: nothing listens there.*; rank 0, which hosts it unless a `+
					`launcher does, does not run on this host\.$`)
		})
		t.Run("a port that something else has", func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() }) // it takes connections and never says a word
			_, number, _ := net.SplitHostPort(l.Addr().String())
			port, _ := strconv.Atoi(number)
			byHand(t, torch, "127.0.0.1", port, 2, 1)
			why(t, l.Addr().String(), `^Rank 1 cannot reach the store at 127\.0\.0\.1:\d+: pid `+strconv.Itoa(os.Getpid())+
				` \(.*\) listens there and has not answered as a store does.*; rank 0, which hosts it unless a launcher does, does `+
				`not run on this host\.$`)
		})
		t.Run("a host that does not resolve", func(t *testing.T) {
			needNames(t)
			port := testkit.FreePort(t)
			byHand(t, torch, noHost, port, 2, 1)
			why(t, net.JoinHostPort(noHost, strconv.Itoa(port)),
				`^Rank 1 cannot reach the store at no-such-host\.invalid:\d+: the name no-such-host\.invalid does not resolve`)
		})
	})
}

const noHost = "no-such-host.invalid"

// needNames skips where the network does not say that a name does not exist.
func needNames(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := net.DefaultResolver.LookupHost(ctx, noHost)
	if unknown, ok := errors.AsType[*net.DNSError](err); !ok || !unknown.IsNotFound {
		t.Skipf("this machine cannot tell that %s does not exist: %v", noHost, err)
	}
}

// TestFullSharedMemory: data loaders pass batches through /dev/shm, which is small in containers.
func TestFullSharedMemory(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		shm := filepath.Join(torch.Root, "/dev/shm")
		if out, err := exec.Command("unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", shm).CombinedOutput(); err != nil {
			t.Skipf("this machine cannot mount over %s: %v %s", shm, err, out)
		}
		dir := place(t, torch)
		args := append([]string{
			"-m", "sh", "-c", `mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"`, shm, program(t), "run", "--report",
			filepath.Join(dir, "report.json"),
			"--evidence", "-", "--nproc-per-node", "2",
		}, torch.Command()...)
		j := begin(t, dir, exec.Command("unshare", append(args, "-u", dir+"/fail.py", "shm")...))
		j.end()
		want := `^rank 1 raised RuntimeError: (DataLoader worker \(pid \d+\) is killed by signal: Bus error.*out of shared ` +
			`memory|unable to (write to file|allocate shared memory|mmap|resize|open shared).*)`
		if s := j.report().Sentence; !regexp.MustCompile(want).MatchString(s) {
			t.Errorf("%s\nwant %s\n%s", s, want, j.err)
		}
		if !strings.Contains(j.err.String(), "/dev/shm") {
			t.Errorf("no word of /dev/shm in\n%s", j.err)
		}
	})
}

// TestKilledForMemory: a worker that the kernel kills for lack of memory in its cgroup, of either version.
func TestKilledForMemory(t *testing.T) {
	t.Parallel()
	torchtest.V26.Need(t) // with the other tests that run for real; the worker is not Python
	group, limit := memoryGroup(t)
	if err := os.WriteFile(filepath.Join(group, limit), []byte("67108864"), 0o600); err != nil {
		t.Skipf("this machine cannot limit the memory of a cgroup: %v", err)
	}
	_ = os.WriteFile(filepath.Join(group, "memory.memsw.limit_in_bytes"), []byte("67108864"), 0o600) // where there is swap
	_ = os.WriteFile(filepath.Join(group, "memory.swap.max"), []byte("0"), 0o600)
	dir := t.TempDir()
	j := begin(t, dir, exec.Command("sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, group, program(t), "run",
		"--nproc-per-node", "2",
		"--report", filepath.Join(dir, "report.json"), "--evidence", "-", "sh", "-c",
		"[ $RANK = 0 ] && exec sleep 1000; exec tail /dev/zero"))
	j.end()
	want := `^rank 1 was killed by the kernel: out of memory \(\d+ MiB resident, limit 64 MiB\)$`
	if s := j.report().Sentence; !regexp.MustCompile(want).MatchString(s) {
		t.Errorf("%s\nwant %s\n%s", s, want, j.err)
	}
}

// memoryGroup makes a cgroup below that of this process and returns it with the name of its limit.
func memoryGroup(t *testing.T) (folder, limit string) {
	t.Helper()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skipf("this machine cannot tell its cgroups: %v", err)
	}
	for line := range strings.Lines(string(own)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[1] == "memory":
			folder, limit = filepath.Join("/sys/fs/cgroup/memory", parts[2]), "memory.limit_in_bytes"
		case parts[1] == "" && folder == "":
			folder, limit = filepath.Join("/sys/fs/cgroup", parts[2]), "memory.max"
		}
	}
	if folder, err = os.MkdirTemp(folder, "cohort-test-"); err != nil { //nolint:usetesting // a cgroup
		t.Skipf("this machine cannot make a cgroup: %v", err)
	}
	t.Cleanup(func() {
		for range 100 { // until its last process is gone
			if err := syscall.Rmdir(folder); err == nil || errors.Is(err, os.ErrNotExist) {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	return folder, limit
}

// TestBesideTorchfrtrace: of the same dumps of NCCL ranks "cohort why" says at least what torchfrtrace says, and something
// where that says nothing.
func TestBesideTorchfrtrace(t *testing.T) {
	t.Parallel()
	torchtest.Each(t, func(t *testing.T, torch *torchtest.Torch) {
		if !torch.About(t).Since(2, 14) {
			torch.NotApplicable(t, "has no torchfrtrace")
		}
		dir := place(t, torch)
		command := torch.Command()
		var said bytes.Buffer
		_ = runInto(t, dir, exec.Command(command[0], append(command[1:], "-u", dir+"/frtrace.py", dir)...), &said)
		for _, c := range []struct{ kind, theirs, ours string }{
			{"missing", "missing ranks: {2}", "Rank 2 has not reached all_reduce number 4 of default_pg; ranks 0 and 1 wait."},
			{
				"operation", "Culprit rank 2; Error type: COLLECTIVE_TYPE_MISMATCH",
				"Rank 2 calls broadcast (train.py:14) where ranks 0 and 1 call all_reduce (train.py:14) as number 4 of default_pg.",
			},
			{
				"size", "Culprit rank 2; Error type: SIZE_OR_SYNTAX_MISMATCH",
				"Rank 2 calls all_reduce with [[4]] where ranks 0 and 1 call all_reduce with [[8]] as number 4 of default_pg.",
			},
			{
				"dtype", "Culprit rank 2; Error type: COLLECTIVE_DTYPE_MISMATCH",
				"Rank 2 calls all_reduce of type Half where ranks 0 and 1 call all_reduce of type Float as number 4 of default_pg.",
			},
			{
				"first", "Culprit rank 0; Error type: COLLECTIVE_TYPE_MISMATCH",
				"Rank 0 calls broadcast (train.py:14) where ranks 1 and 2 call all_reduce (train.py:14) as number 4 of default_pg.",
			},
			{
				"newer", "nccl2 not in",
				"Rank 1 calls all_gather_base (train.py:14) where ranks 0 and 2 call all_reduce (train.py:14) as number 4 of default_pg.",
			},
			{
				"network", "",
				"Ranks 0-2 are in all_reduce number 4 of default_pg with the same sizes, and none makes progress: the network " +
					"between them is stuck, or one of them died after it had entered.",
			},
		} {
			_, theirs, found := strings.Cut(said.String(), "== "+c.kind+"\n")
			theirs, _, _ = strings.Cut(theirs, "== ")
			if !found || !strings.Contains(theirs, c.theirs) || c.theirs == "" && strings.TrimSpace(theirs) != "" {
				t.Errorf("%s: torchfrtrace says %q, want %q", c.kind, theirs, c.theirs)
			}
			out, err := exec.Command(program(t), "why", filepath.Join(dir, c.kind)).CombinedOutput()
			if err != nil || !strings.Contains(string(out), c.ours) {
				t.Errorf("%s: %v: cohort why says\n%swant %s", c.kind, err, out, c.ours)
			}
		}
	})
}
