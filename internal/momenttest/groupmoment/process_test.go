// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package groupmoment

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/internal/momenttest"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

const (
	rankEnv   = "COHORT_MOMENT_RANK"
	killEvent = "kill"
	stopEvent = "stop"
	heartbeat = 2 * time.Second
	// lostSoon is how soon survivors know of a death. The promise is a second; the machine may be busy.
	lostSoon = 5 * time.Second
)

// orders are what a rank's process is told.
type orders struct {
	Rank      int
	Addr      string
	Transport group.Transport
	Seed      uint64
	// Point and N say where the process does to itself what Event says; none: it counts.
	Point string
	N     int
	Event string
	// Regroup tells the survivors to form another group afterwards.
	Regroup bool
}

// momentLine is what the victim says when its moment has come.
const momentLine = "now"

// result is what a rank's process says about itself.
type result struct {
	Hits  map[string]int
	Err   string // of the program
	Code  uint8
	Rank  dist.Rank
	Began time.Time
	Ended time.Time
	Again string // the error of the group that the survivors form
}

// rankMain is a rank in a process of its own.
func rankMain(spec string) int {
	var o orders
	if err := json.Unmarshal([]byte(spec), &o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	res := result{Hits: map[string]int{}, Rank: dist.NoRank}
	ctx, cancel := context.WithTimeout(context.Background(), 2*timeout)
	defer cancel()
	s, err := tcpstore.Dial(ctx, o.Addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer func() { _ = s.Close() }()
	g, err := group.New(ctx, store.Prefix("first", s), o.Rank, size, group.WithTransport(o.Transport), group.WithTimeout(timeout), group.WithHeartbeat(heartbeat))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	var mu sync.Mutex
	stop := moment.SetHook(func(point string) {
		mu.Lock()
		res.Hits[point]++
		here := point == o.Point && res.Hits[point] == o.N
		mu.Unlock()
		if !here {
			return
		}
		signal := syscall.SIGKILL
		if o.Event == stopEvent {
			signal = syscall.SIGSTOP
		}
		fmt.Println(momentLine)
		_ = syscall.Kill(os.Getpid(), signal)
	})
	res.Began = time.Now()
	err = runProgram(ctx, g, o.Seed)
	res.Ended = time.Now()
	mu.Lock()
	stop()
	mu.Unlock()
	if err != nil {
		res.Err, res.Code = err.Error(), uint8(dist.CodeOf(err))
		if e, ok := errors.AsType[*dist.Error](err); ok {
			res.Rank = e.Rank
		}
	}
	_ = g.Close()
	if o.Regroup && o.Rank != victim { // the survivors go on without the victim
		rank := o.Rank
		if rank > victim {
			rank--
		}
		if again := regroup(ctx, s, rank, o.Transport); again != nil {
			res.Again = again.Error()
		}
	}
	out, _ := json.Marshal(&res)
	fmt.Println(string(out))
	return 0
}

// runProgram runs the steps of a seed, three times over, so that there is something to interrupt.
func runProgram(ctx context.Context, g *group.Group, seed uint64) error {
	steps := program(rand.New(rand.NewPCG(seed, 99))) //nolint:gosec // a test that can be repeated
	for range 3 {
		for _, s := range steps {
			if err := run(ctx, g, s.operation, s.n); err != nil {
				return err
			}
		}
	}
	return run(ctx, g, operations[0], 10) // nobody leaves before all are done
}

func regroup(ctx context.Context, s store.Store, rank int, transport group.Transport) error {
	g, err := group.New(ctx, store.Prefix("second", s), rank, size-1, group.WithTransport(transport), group.WithTimeout(timeout))
	if err != nil {
		return err
	}
	defer func() { _ = g.Close() }()
	return run(ctx, g, operations[0], 10)
}

// TestProcesses kills or stops a rank's process at a point, by its own hand. The survivors must name it, in time, and can
// form another group.
func TestProcesses(t *testing.T) {
	for _, transport := range transports {
		momenttest.TestProcesses(t, momenttest.ProcessScenario{
			Name: string(transport), Share: 20, Events: []string{killEvent, stopEvent},
			Points: []string{"group.", "shm.", "tcp.", "gloo.", "native."},
			Run: func(p *momenttest.ProcessRun) map[string]int {
				if p.Event == stopEvent && transport == group.Gloo {
					p.Event = killEvent // gloo's wire has no heartbeat
				}
				return runProcesses(p, transport)
			},
		})
	}
}

// process is a rank that was started.
type process struct {
	cmd    *exec.Cmd
	ended  chan struct{} // closed when all it said was read
	result *result       // valid then; nil: it said nothing
	event  time.Time     // when it said that its moment had come
}

func start(p *momenttest.ProcessRun, o orders) *process {
	spec, _ := json.Marshal(o)
	child := &process{cmd: exec.Command(os.Args[0]), ended: make(chan struct{})} //nolint:gosec // this program
	child.cmd.Env = append(os.Environ(), rankEnv+"="+string(spec))
	child.cmd.Stderr = os.Stderr
	stdout, err := child.cmd.StdoutPipe()
	if err == nil {
		err = child.cmd.Start()
	}
	if err != nil {
		p.Errorf("%v", err)
		close(child.ended)
		return child
	}
	go func() {
		defer close(child.ended)
		lines := bufio.NewScanner(stdout)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if lines.Text() == momentLine {
				child.event = time.Now()
				continue
			}
			child.result = &result{}
			if err := json.Unmarshal(lines.Bytes(), child.result); err != nil {
				p.Errorf("rank %d: %v", o.Rank, err)
			}
		}
	}()
	return child
}

// wait returns when the process has ended, which it is made to if it takes too long.
func (c *process) wait(p *momenttest.ProcessRun, rank int) {
	select {
	case <-c.ended:
	case <-time.After(5 * timeout):
		p.Errorf("rank %d has not ended", rank)
	}
	_ = c.cmd.Process.Kill()
	<-c.ended
	_ = c.cmd.Wait()
}

func runProcesses(p *momenttest.ProcessRun, transport group.Transport) map[string]int {
	server, err := tcpstore.Listen("127.0.0.1:0")
	if err != nil {
		p.Errorf("%v", err)
		return nil
	}
	defer func() { _ = server.Close() }()
	ranks := make([]*process, size)
	for rank := range size {
		o := orders{Rank: rank, Addr: server.Addr().String(), Transport: transport, Seed: p.Seed, Regroup: p.Event != ""}
		if rank == victim {
			o.Point, o.N, o.Event = p.Point, p.N, p.Event
		}
		ranks[rank] = start(p, o)
	}
	for rank, c := range ranks { // the victim may be stopped: it is ended after the others
		if rank != victim {
			c.wait(p, rank)
		}
	}
	if p.Event != "" {
		_ = ranks[victim].cmd.Process.Kill()
	}
	ranks[victim].wait(p, victim)
	if p.Event != "" && !ranks[victim].event.IsZero() {
		p.Happened()
		judge(p, ranks)
		return nil
	}
	for rank, c := range ranks {
		if c.result == nil && (rank != victim || p.Event == "") || c.result != nil && c.result.Err != "" {
			p.Errorf("rank %d, to which nothing happened: %+v", rank, c.result)
		}
	}
	if ranks[victim].result == nil {
		return nil
	}
	return ranks[victim].result.Hits
}

// judge is the oracle.
func judge(p *momenttest.ProcessRun, ranks []*process) {
	bound := lostSoon
	if p.Event == stopEvent {
		bound += heartbeat
	}
	for rank, c := range ranks {
		if rank == victim {
			continue
		}
		res := c.result
		if res == nil {
			p.Errorf("rank %d has said nothing", rank)
			continue
		}
		if res.Err != "" { // else it needed nothing more from the victim
			if code := dist.Code(res.Code); code != dist.PeerLost || res.Rank != victim {
				p.Errorf("rank %d: %s (code %v, rank %d)", rank, res.Err, code, res.Rank)
			}
			if took := res.Ended.Sub(ranks[victim].event); took > bound {
				p.Errorf("rank %d noticed after %v", rank, took)
			}
		}
		if res.Again != "" {
			p.Errorf("rank %d could not form another group: %s", rank, res.Again)
		}
	}
}
