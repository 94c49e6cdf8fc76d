// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/sys/spinwait"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

// costEnv has a [costSpec]: this process is one of two ranks and prints its [costReport].
const costEnv = "COHORT_GROUP_COST"

func init() { roles[costEnv] = func(spec string) int { return reportCost(spec) } } //nolint:gochecknoinits // a role

type costSpec struct {
	Rank      cohort.Rank
	Transport Transport
	Store     string
	Bytes     int           // of an all-reduce
	Delay     time.Duration // of rank 1 before each
	Wall      time.Duration // for which they go on; there is at least one
	Rate      int           // bytes per second on each connection, unless it is 0
}

// costReport is what all-reduces have cost a process.
type costReport struct {
	CPU, Wall  time.Duration
	Operations int
	Long       int         // operations that took longer than a nap
	Wakes      map[int]int // for each thread, how often it went to sleep and was woken
}

// extraWakes is how often threads were woken beside once for each operation.
func (r *costReport) extraWakes() int {
	sum := -r.Operations
	for _, n := range r.Wakes {
		sum += n
	}
	return sum
}

func reportCost(spec string) int {
	var s costSpec
	err := json.Unmarshal([]byte(spec), &s)
	if err == nil {
		var report *costReport
		if report, err = s.run(); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(report)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

func (s *costSpec) run() (*costReport, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := tcpstore.Dial(ctx, s.Store)
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	g, err := New(ctx, client, s.Rank, 2, WithTransport(s.Transport), WithPeers(OnlyGo))
	if err != nil {
		return nil, err
	}
	defer func() { _ = g.Close() }()
	if s.Rate > 0 {
		if err := g.mesh.(interface{ Pace(rate int) error }).Pace(s.Rate); err != nil { //nolint:errcheck // those of TCP have it
			return nil, err
		}
	}
	warm := *s
	warm.Delay, warm.Wall = 0, 20*time.Millisecond
	if _, err := warm.reduce(ctx, g); err != nil {
		return nil, err
	}
	return s.reduce(ctx, g)
}

// reduce runs all-reduces and measures them. Rank 0 says which is the last one, in its operand.
func (s *costSpec) reduce(ctx context.Context, g *Group) (*costReport, error) {
	x := from(make([]float32, s.Bytes/4)...)
	last, err := tensor.Data[float32](x)
	if err != nil {
		return nil, err
	}
	if err := g.Barrier(ctx).Wait(ctx); err != nil {
		return nil, err
	}
	var report costReport
	wakes, cpu, began := wakesOfThreads(), processorTime(), time.Now()
	for work := new(Work); last[0] == 0; report.Operations++ {
		if g.Rank() == 1 {
			time.Sleep(s.Delay)
		}
		posted := time.Now()
		if g.Rank() == 0 && posted.Sub(began) >= s.Wall {
			last[0] = 1
		}
		work = g.AllReduce(ctx, x, Sum, Reuse(work))
		if err := work.Wait(ctx); err != nil {
			return nil, err
		}
		if time.Since(posted) > spinwait.RawSleep {
			report.Long++
		}
	}
	report.Wall, report.CPU, report.Wakes = time.Since(began), processorTime()-cpu, wakesOfThreads()
	for thread, before := range wakes {
		report.Wakes[thread] -= before
	}
	return &report, nil
}

// processorTime is that of all threads of this process.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// wakesOfThreads is how often each thread of this process has gone to sleep.
func wakesOfThreads() map[int]int {
	files, _ := filepath.Glob("/proc/self/task/*/status")
	wakes := map[int]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		thread, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		_, rest, _ := strings.Cut(string(text), "\nvoluntary_ctxt_switches:")
		line, _, _ := strings.Cut(rest, "\n")
		wakes[thread], _ = strconv.Atoi(strings.TrimSpace(line))
	}
	return wakes
}

// costs runs both ranks as processes with so many GOMAXPROCS.
func costs(t *testing.T, s costSpec, procs int) [2]costReport {
	t.Helper()
	server, err := tcpstore.Listen("127.0.0.1:0")
	must(t, err)
	defer func() { _ = server.Close() }()
	s.Store = server.Addr().String()
	var reports [2]costReport
	must(t, each(2, func(rank int) error {
		mine := s
		mine.Rank = cohort.Rank(rank)
		spec, err := json.Marshal(mine)
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), costEnv+"="+string(spec), fmt.Sprintf("GOMAXPROCS=%d", procs))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%w: %s", err, stderr.Bytes())
		}
		return json.Unmarshal(out, &reports[rank])
	}))
	return reports
}

// The bounds below hold beside other work too: it can only lower what a process uses of a core.

// TestRankUsesOneCore: a rank in a series of collectives uses one core, whatever its GOMAXPROCS. The bound of 1.05 has a slack of 0.05 for
// what the Go runtime does now and then.
func TestRankUsesOneCore(t *testing.T) {
	for _, transport := range []Transport{SharedMemory, TCP} {
		for _, bytes := range []int{4, 64 << 10} {
			for _, procs := range []int{1, 2, 16} {
				t.Run(fmt.Sprintf("%s, %d bytes, GOMAXPROCS=%d", transport, bytes, procs), func(t *testing.T) {
					for rank, r := range costs(t, costSpec{Transport: transport, Bytes: bytes, Wall: 250 * time.Millisecond}, procs) {
						cores := r.CPU.Seconds() / r.Wall.Seconds()
						t.Logf("rank %d: %.3f cores, %d operations, wakes %v", rank, cores, r.Operations, r.Wakes)
						if cores > 1.05+0.05 {
							t.Errorf("rank %d uses %.3f cores", rank, cores)
						}
					}
				})
			}
		}
	}
}

// TestSleepingRankUsesNoCore: a rank that waits for one that is late uses its patience once, and then next to nothing: it wakes every 20 or
// 40 ms to look at its context. That takes about 1 % of a core, and twice that with the race detector.
func TestSleepingRankUsesNoCore(t *testing.T) {
	t.Parallel()
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			t.Parallel()
			const late = 2 * time.Second
			r := costs(t, costSpec{Transport: transport, Bytes: 4, Delay: late}, 2)[0]
			t.Logf("%v in %v, wakes %v", r.CPU, r.Wall, r.Wakes)
			if r.CPU > late/40 {
				t.Errorf("a rank that waits for %v uses %v of processor time", r.Wall, r.CPU)
			}
		})
	}
}

// TestWaitingRankWakesNoOtherThread: one rank comes to each collective a millisecond after the other, which therefore
// sleeps in each and is woken once. Beside that its threads wake 250 to 500 times in a second, for the clock, the
// keeper and the runtime's monitor; when each sleep told the runtime of itself it was 2,500 times and more. Of an
// operation that takes longer than a nap the runtime is notified, and then its monitor looks around for a millisecond,
// every 20 us. A very busy machine can hold the rank up between operations too, so one in five tries has to be within
// the bound.
func TestWaitingRankWakesNoOtherThread(t *testing.T) {
	for _, transport := range []Transport{SharedMemory, TCP} {
		for _, bytes := range []int{4, 64 << 10} {
			for _, procs := range []int{2, 16} { // a rank with one has no naps: it could not run anything else in them
				t.Run(fmt.Sprintf("%s, %d bytes, GOMAXPROCS=%d", transport, bytes, procs), func(t *testing.T) {
					var r costReport
					for range 5 {
						if r = costs(t, costSpec{
							Transport: transport, Bytes: bytes, Delay: time.Millisecond,
							Wall: 500 * time.Millisecond,
						}, procs)[0]; r.extraWakes() <= int(r.Wall.Seconds()*1000)+100*r.Long {
							return
						}
					}
					t.Errorf("%d operations, %d of them long, in %v: the threads were woken %v times", r.Operations, r.Long,
						r.Wall, r.Wakes)
				})
			}
		}
	}
}
