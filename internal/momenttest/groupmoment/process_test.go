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
	"testing"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/momenttest"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

const (
	rankEnv   = "COHORT_MOMENT_RANK"
	heartbeat = 3 * time.Second
	// lostSoon is how soon survivors know of a death. The promise is a second; the machine may be busy.
	lostSoon = 5 * time.Second
)

// orders are what a rank's process is told.
type orders struct {
	Rank      int
	Victim    int
	Addr      string
	Transport group.Transport
	Seed      uint64
	// Point and N say where the process does to itself what Event says; none: it counts.
	Point string
	N     int
	Event string
	// Regroup tells the survivors to form another group afterwards.
	Regroup bool
	// Forming tells that the moment is one of the forming of the group, see forming_process_test.go.
	Forming  bool
	After    aftermath
	Replaces bool // it takes the place of the victim
}

// failedLine is what a process says when its first group has ended.
const failedLine = "ended"

// result is what a rank's process says about itself.
type result struct {
	Hits  map[string]int
	Err   string // of the program
	Code  uint8
	Rank  dist.Rank
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
	ctx, cancel := context.WithTimeout(context.Background(), 2*timeout)
	defer cancel()
	s, err := tcpstore.Dial(ctx, o.Addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	defer func() { _ = s.Close() }()
	res := result{Rank: dist.NoRank}
	if o.Forming {
		formingRank(ctx, s, o, &res)
	} else if err := workingRank(ctx, s, o, &res); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	out, _ := json.Marshal(&res)
	fmt.Println(string(out))
	return 0
}

// workingRank runs a program in a group that is made before anything happens. It returns an error if the group cannot be made.
func workingRank(ctx context.Context, s store.Store, o orders, res *result) error {
	g, err := group.New(ctx, store.Prefix("first", s), dist.Rank(o.Rank), size, group.WithTransport(o.Transport), group.WithTimeout(timeout), group.WithHeartbeat(heartbeat))
	if err != nil {
		return err
	}
	stop := momenttest.OwnMoment(o.Event, o.Point, o.N)
	err = runProgram(ctx, g, o.Seed)
	res.end(err)
	res.Hits = stop()
	_ = g.Close()
	if o.Regroup && o.Rank != o.Victim { // the survivors go on without the victim
		rank := o.Rank
		if rank > o.Victim {
			rank--
		}
		if again := regroup(ctx, store.Prefix("second", s), rank, size-1, o.Transport); again != nil {
			res.Again = again.Error()
		}
	}
	return nil
}

// end notes how the program of a rank has ended.
func (res *result) end(err error) {
	res.Ended = time.Now()
	if err == nil {
		return
	}
	res.Err, res.Code = err.Error(), uint8(dist.CodeOf(err))
	if e, ok := errors.AsType[*dist.Error](err); ok {
		res.Rank = e.Rank
	}
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

// regroup forms a group and uses it.
func regroup(ctx context.Context, s store.Store, rank, size int, transport group.Transport) error {
	g, err := group.New(ctx, s, dist.Rank(rank), size, group.WithTransport(transport), group.WithTimeout(timeout))
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
			Name: string(transport), Share: 20, Events: []string{momenttest.KillEvent, momenttest.StopEvent},
			Points: []string{"group.", "shm.", "tcp.", "gloo.", "native."},
			Run: func(p *momenttest.ProcessRun) map[string]int {
				if p.Event == momenttest.StopEvent && transport == group.Gloo {
					p.Event = momenttest.KillEvent // gloo's wire has no heartbeat
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
	event  time.Time     // when it said that its moment had come; valid then
	moment chan struct{} // closed when it has
	failed chan struct{} // closed when it said that its first group has ended
}

func start(p *momenttest.ProcessRun, o orders) *process {
	spec, _ := json.Marshal(o)
	child := &process{cmd: exec.Command(os.Args[0]), ended: make(chan struct{}), moment: make(chan struct{}), failed: make(chan struct{})} //nolint:gosec // this program
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
			switch lines.Text() {
			case momenttest.MomentLine:
				child.event = time.Now()
				close(child.moment)
				continue
			case failedLine:
				close(child.failed)
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
		o := orders{Rank: rank, Victim: victim, Addr: server.Addr().String(), Transport: transport, Seed: p.Seed, Regroup: p.Event != ""}
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
	if p.Event == momenttest.StopEvent {
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
