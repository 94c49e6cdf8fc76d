// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
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
)

var (
	chaosSeeds = flag.Int("chaos.seeds", 4, "jobs whose processes are killed and stopped at random moments")
	chaosSeed  = flag.Uint64("chaos.seed", 101, "the first seed; 0: by the clock")
)

// TestChaos: whatever is killed, stopped or interrupted at whichever moment, launchers, supervisors, workers or the store through which
// the launchers meet, every launcher that lives ends in time and says how, and no process, folder or port is left.
func TestChaos(t *testing.T) {
	t.Parallel()
	first := *chaosSeed
	if first == 0 {
		first = uint64(time.Now().UnixNano()) % 1e9
	}
	for i := range uint64(*chaosSeeds) {
		t.Run(fmt.Sprint("seed ", first+i), func(t *testing.T) {
			t.Parallel()
			newChaos(t, first+i).run()
		})
	}
}

// chaos is one job and what happens to it.
type chaos struct {
	t         *testing.T
	r         *rand.Rand
	mark      string // in the environment of all its processes
	tmp       string
	endpoint  string
	chance    string // for the workers
	launchers []*chaosLauncher
	token     string   // the file of the job's token, in every other job
	told      []string // what was done
	began     time.Time
}

type chaosLauncher struct {
	*command
	killed  bool // the launcher itself or its supervisor
	stopped bool
}

func newChaos(t *testing.T, seed uint64) *chaos {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 7))
	c := &chaos{
		t: t, r: r, chance: fmt.Sprint("CHANCE=", r.IntN(105)), mark: fmt.Sprintf("COHORT_CHAOS=%d-%d", os.Getpid(), seed),
		tmp:      t.TempDir(),
		endpoint: net.JoinHostPort("127.0.0.1", strconv.Itoa(testkit.FreePort(t))), began: time.Now(),
	}
	if seed%2 == 0 {
		c.token, _ = newToken(t)
	}
	return c
}

// chaosWorker has a child and a daemon, and lasts, succeeds, fails or is deaf, by a chance that the seed decides.
const chaosWorker = `sleep 1000 & (setsid sleep 1000 >/dev/null 2>&1 &)
n=$((CHANCE + RANK + 4 * TORCHELASTIC_RESTART_COUNT))
[ $((n % 5)) != 0 ] || trap "" TERM INT
echo up $RANK of $WORLD_SIZE
i=0; while [ $i -lt $((n % 7 * 4)) ]; do i=$((i+1)); sleep 0.05; done
[ $((n % 3)) != 0 ] || exit 3
kill $!`

func (c *chaos) say(format string, args ...any) {
	c.told = append(c.told, fmt.Sprintf("%6.3f ", time.Since(c.began).Seconds())+fmt.Sprintf(format, args...))
}

func (c *chaos) start(args ...string) *command {
	c.t.Helper()
	p := &command{t: c.t, cmd: exec.Command("cohort", args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.Env = append(os.Environ(), c.mark, c.chance, "TMPDIR="+c.tmp, "XDG_STATE_HOME="+c.t.TempDir(), "COHORT_TOKEN_FILE="+c.token)
	if err := p.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	c.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

// launch starts one more launcher of the job.
func (c *chaos) launch(nodes int) {
	args := []string{
		"run", "--nproc-per-node", strconv.Itoa(1 + c.r.IntN(3)), "--max-restarts", strconv.Itoa(c.r.IntN(3)),
		"--shutdown-timeout", "1", "--culprit-timeout", "0.3",
	}
	if nodes > 1 {
		args = append(args, "--nnodes", fmt.Sprint(1+c.r.IntN(nodes), ":", nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", c.endpoint,
			"--rdzv-conf", "last_call_timeout=0.5,heartbeat_timeout=2,join_timeout=4")
	}
	if c.r.IntN(4) == 0 {
		args = append(args, "--members", "1")
		args[4] = "0"
	}
	c.launchers = append(c.launchers,
		&chaosLauncher{command: c.start(append(args, "sh", "-c", strings.ReplaceAll(chaosWorker, "$", "$$"))...)})
	c.say("launcher %d: %s", len(c.launchers)-1, strings.Join(args, " "))
}

// below returns a process below pid, 0 if there is none.
func (c *chaos) below(pid int) int {
	var all []int
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range tasks {
		text, _ := os.ReadFile(name)
		for field := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(field); err == nil {
				all = append(all, n)
			}
		}
	}
	if len(all) == 0 {
		return 0
	}
	return all[c.r.IntN(len(all))]
}

// harm does something to a process of the job.
func (c *chaos) harm(store *command) {
	i := c.r.IntN(len(c.launchers))
	l := c.launchers[i]
	pid := l.cmd.Process.Pid
	select {
	case <-l.done:
		return
	default:
	}
	send := func(what string, pid int, s syscall.Signal) bool {
		if pid == 0 || syscall.Kill(pid, s) != nil {
			return false
		}
		c.say("%s of launcher %d: %v", what, i, s)
		return true
	}
	switch supervisor := c.below(pid); c.r.IntN(9) {
	case 0, 1:
		if worker := c.below(max(supervisor, 1)); supervisor != 0 {
			send("a process", worker, syscall.SIGKILL)
		}
	case 2:
		if !l.killed {
			l.killed = send("the supervisor", supervisor, syscall.SIGKILL)
		}
	case 3:
		if !l.killed {
			l.killed = send("the process", pid, syscall.SIGKILL)
		}
	case 4:
		send("the process", pid, []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1}[c.r.IntN(3)])
	case 5, 6:
		l.stopped = send("the process", pid, syscall.SIGSTOP)
	case 7:
		if l.stopped {
			l.stopped = !send("the process", pid, syscall.SIGCONT)
		}
	case 8:
		if store != nil {
			_ = store.cmd.Process.Kill()
			c.say("the store is killed")
		}
	}
}

func (c *chaos) run() {
	nodes := 1 + c.r.IntN(3)
	var store *command
	if nodes > 1 && c.r.IntN(2) == 0 {
		store = c.start("store", "serve", "--addr", c.endpoint)
		c.say("a store")
	}
	for range nodes {
		c.launch(nodes)
		time.Sleep(time.Duration(c.r.IntN(200)) * time.Millisecond)
	}
	for range 1 + c.r.IntN(4) {
		time.Sleep(time.Duration(c.r.IntN(700)) * time.Millisecond)
		if nodes > 1 && c.r.IntN(5) == 0 && len(c.launchers) < 5 {
			c.launch(nodes)
			continue
		}
		c.harm(store)
	}
	time.Sleep(time.Duration(c.r.IntN(3000)) * time.Millisecond)
	for _, l := range c.launchers {
		if l.stopped {
			_ = l.cmd.Process.Signal(syscall.SIGCONT)
		}
	}
	for i, l := range c.launchers {
		select {
		case <-l.done:
		case <-time.After(2 * time.Minute):
			_ = l.cmd.Process.Signal(syscall.SIGABRT) // it prints where its goroutines are
			<-l.done
			c.t.Fatalf("launcher %d does not end:\n%s\n%s", i, strings.Join(c.told, "\n"), l)
		}
		c.judge(i, l)
	}
	if store != nil {
		_ = store.cmd.Process.Kill()
		<-store.done
	}
	c.nothingLeft()
}

// reported are the last words of a launcher: the head of its report, or of the error that has ended it before it began.
var reported = regexp.MustCompile(`(?m)^cohort: the job (failed|was ended)|^cohort: launch: `)

func (c *chaos) judge(i int, l *chaosLauncher) {
	code := l.cmd.ProcessState.ExitCode()
	if code == 0 || code < 0 && (l.killed || l.String() == "") { // it succeeded, was killed, or a signal came before it had begun
		return
	}
	if text := l.String(); code != 1 || !reported.MatchString(text) || strings.Contains(text, "panic") {
		c.t.Errorf("launcher %d: exit code %d without a report:\n%s\n%s", i, code, strings.Join(c.told, "\n"), text)
	}
}

// nothingLeft checks that every process is gone, every folder removed, and the endpoint free.
func (c *chaos) nothingLeft() {
	var left []string
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); time.Sleep(50 * time.Millisecond) {
		left = left[:0]
		environs, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, name := range environs {
			text, _ := os.ReadFile(name)
			if bytes.Contains(text, []byte(c.mark+"\x00")) {
				line, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "cmdline"))
				left = append(left, filepath.Dir(name)+" "+string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
			}
		}
		files, _ := filepath.Glob(filepath.Join(c.tmp, "*"))
		if left = append(left, files...); len(left) == 0 {
			break
		}
	}
	if len(left) > 0 {
		c.t.Errorf("left behind:\n%s\n%s", strings.Join(left, "\n"), strings.Join(c.told, "\n"))
	}
	if l, err := net.Listen("tcp", c.endpoint); err != nil {
		c.t.Errorf("%v\n%s", err, strings.Join(c.told, "\n"))
	} else {
		_ = l.Close()
	}
}
