// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build moments

package groupfail

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/failpointtest"
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
	// Moments are what the process does to itself, and where; none: it counts.
	Moments []failpointtest.OwnEvent
	// Regroup tells those who are left to form another group afterwards.
	Regroup bool
	// Forming tells that the moment is one of the forming of the group, see forming_process_test.go.
	Forming  bool
	After    aftermath
	Replaces bool // it takes the place of the victim
	// Pair tells that something may happen to two ranks while the group forms, see forming_pair_test.go.
	Pair bool
	// Change tells how that group is made from another; "": it is not, see changing_process_test.go.
	Change change
	// Elastic tells that the process is a member whose groups a coordinator makes, see elastic_process_test.go.
	Elastic bool
}

// What a process says: that all ranks have their first group, and that it has ended.
const (
	begunLine  = "begun"
	failedLine = "ended"
)

// leftKey is the key under which the ranks that are left find out who they are.
const leftKey = "test/left"

// result is what a rank's process says about itself.
type result struct {
	Hits  map[string]int
	Err   string // of the program
	Code  uint8
	Rank  cohort.Rank
	Ended time.Time
	Again string // the error of the group that the survivors form
	// Number is the rank in the group that was made from another, or was to be.
	Number int
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
	res := result{Rank: cohort.NoRank}
	switch {
	case o.Forming:
		formingRank(ctx, s, o, &res)
	case o.Elastic:
		elasticRank(ctx, s, o, &res)
	case o.Change != "":
		err = changingRank(ctx, s, o, &res)
	case o.Pair:
		pairRank(ctx, s, o, &res)
	default:
		err = workingRank(ctx, s, o, &res)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	out, _ := json.Marshal(&res)
	fmt.Println(string(out))
	return 0
}

// workingRank runs a program in a group that is made before anything happens. It returns an error if the group cannot be made.
func workingRank(ctx context.Context, s store.Store, o orders, res *result) error {
	g, err := group.New(ctx, store.Prefix("first", s), cohort.Rank(o.Rank), pairSize,
		with(o.Transport, group.WithTimeout(timeout), group.WithHeartbeat(heartbeat))...)
	if err != nil {
		return err
	}
	if err = begin(ctx, s, pairSize); err != nil { // nothing happens before all ranks have the group
		return err
	}
	fmt.Println(begunLine)
	stop := failpointtest.OwnMoment(o.Moments)
	err = runProgram(ctx, g, o.Seed)
	res.end(err)
	res.Hits = stop()
	_ = g.Close()
	fmt.Println(failedLine)
	if !o.Regroup {
		return nil
	}
	regroupLeft(ctx, s, o, res)
	return nil
}

// whoIsLeft returns the ranks to which nothing happens any more.
func whoIsLeft(ctx context.Context, s store.Store) (left []int, err error) {
	raw, err := s.Get(ctx, leftKey)
	if err == nil {
		err = json.Unmarshal(raw, &left)
	}
	return left, err
}

// regroupLeft forms another group of those that are left.
func regroupLeft(ctx context.Context, s store.Store, o orders, res *result) {
	left, err := whoIsLeft(ctx, s)
	rank := slices.Index(left, o.Rank)
	if err == nil && rank < 0 { // it was stopped, and came back
		return
	}
	if err == nil {
		err = regroup(ctx, store.Prefix("second", s), rank, len(left), o.Transport)
	}
	if err != nil {
		res.Again = err.Error()
	}
}

// end notes how the program of a rank has ended.
func (res *result) end(err error) {
	res.Ended = time.Now()
	if err == nil {
		return
	}
	res.Err, res.Code = err.Error(), uint8(cohort.CodeOf(err))
	if e, ok := errors.AsType[*cohort.Error](err); ok {
		res.Rank = e.Rank
	}
}

// lostOne reports whether a rank was left by another.
func (res *result) lostOne() bool { return res != nil && cohort.Code(res.Code) == cohort.PeerLost }

// runProgram runs the steps of a seed, three times over, so that there is something to interrupt.
func runProgram(ctx context.Context, g *group.Group, seed uint64) error {
	steps := program(rand.New(rand.NewPCG(seed, 99)))
	for range 3 {
		for _, s := range steps {
			if err := run(ctx, g, s.operation, s.n); err != nil {
				return err
			}
		}
	}
	return run(ctx, g, operations[0], 10) // no rank leaves before all are done
}

// regroup forms a group and uses it.
func regroup(ctx context.Context, s store.Store, rank, size int, transport group.Transport) error {
	g, err := group.New(ctx, s, cohort.Rank(rank), size, with(transport, group.WithTimeout(timeout))...)
	if err != nil {
		return err
	}
	defer func() { _ = g.Close() }()
	return run(ctx, g, operations[0], 10)
}

// victims are the ranks that something happens to.
var victims = []int{victim, peer}

// TestProcesses kills or stops one or two ranks' processes at points, by their own hands, or lets them be late. The survivors must name
// one of them, all the same, in time, and can form another group.
func TestProcesses(t *testing.T) {
	for _, transport := range transports {
		events := []string{failpointtest.KillEvent, failpointtest.StopEvent}
		if transport == group.Gloo {
			events = events[:1] // its wire has no heartbeat
		}
		failpointtest.TestProcesses(t, failpointtest.ProcessScenario{
			Name: string(transport), Share: 20, Events: events, Victims: len(victims),
			Points: []string{"group.", "transport.", "bootstrap.", "shm.", "tcp.", "lanes.", "gloo.", "native."},
			Run:    func(p *failpointtest.ProcessRun) []map[string]int { return runProcesses(p, transport) },
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
	begun  chan struct{} // closed when it said that all ranks have their first group
	failed chan struct{} // closed when it said that that has ended
}

func start(p *failpointtest.ProcessRun, o orders) *process {
	spec, _ := json.Marshal(o)
	child := &process{
		cmd: exec.Command(os.Args[0]), ended: make(chan struct{}), moment: make(chan struct{}),
		begun: make(chan struct{}), failed: make(chan struct{}),
	}
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
		goesOn := func() {}
		defer func() { goesOn() }()
		lines := bufio.NewScanner(stdout)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			switch lines.Text() {
			case failpointtest.MomentLine:
				child.event = time.Now()
				close(child.moment)
				continue
			case failpointtest.PauseLine:
				goesOn = failpointtest.Continue(child.cmd.Process)
				continue
			case failpointtest.LateLine:
				goesOn()
				if !p.Fatal() { // else what is for good has to happen
					p.Happened()
				}
				continue
			case begunLine:
				close(child.begun)
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
func (c *process) wait(p *failpointtest.ProcessRun, rank int) {
	select {
	case <-c.ended:
	case <-time.After(5 * timeout):
		p.Errorf("rank %d has not ended", rank)
	}
	_ = c.cmd.Process.Kill()
	<-c.ended
	_ = c.cmd.Wait()
}

// settle returns when something has happened to the process for good, or nothing will any more.
func (c *process) settle(p *failpointtest.ProcessRun, rank int) (alive bool) {
	select {
	case <-c.moment:
	case <-c.failed:
	case <-c.ended:
	case <-time.After(5 * timeout):
		p.Errorf("rank %d has not ended", rank)
	}
	select {
	case <-c.moment: // before it has ended
		return false
	default:
		return true
	}
}

// awaitBegun returns when the process has said that all ranks have their first group, or has ended.
func (c *process) awaitBegun() {
	select {
	case <-c.begun:
	case <-c.ended:
	}
}

func runProcesses(p *failpointtest.ProcessRun, transport group.Transport) []map[string]int {
	server := listen(p)
	if server == nil {
		return nil
	}
	defer func() { _ = server.Close() }()
	storeDies := p.Fatal() && p.Seed%4 == 0 // with the first of the victims
	for _, s := range program(rand.New(rand.NewPCG(p.Seed, 99))) {
		p.Does(s.name)
	}
	ranks := make([]*process, pairSize)
	for rank := range pairSize {
		o := orders{Rank: rank, Addr: server.Addr().String(), Transport: transport, Seed: p.Seed, Regroup: p.Fatal() && !storeDies}
		if i := slices.Index(victims, rank); i >= 0 {
			o.Moments = p.Victims[i].Moments
		}
		ranks[rank] = start(p, o)
	}
	if storeDies {
		p.Does("death of the store")
		for _, rank := range victims {
			go func() {
				select {
				case <-ranks[rank].moment:
					for _, c := range ranks { // before, it would be the test that needs the store
						c.awaitBegun()
					}
					_ = server.Close()
				case <-ranks[rank].ended:
				}
			}()
		}
	}
	left := []int{}
	for rank, c := range ranks {
		if c.settle(p, rank) {
			left = append(left, rank)
		} else {
			p.Happened()
		}
	}
	if !storeDies {
		if err := tellLeft(server.Addr().String(), left); err != nil {
			p.Errorf("%v", err)
		}
	}
	for _, rank := range left {
		ranks[rank].wait(p, rank)
	}
	for rank, c := range ranks { // those that are stopped come back after the others
		if !slices.Contains(left, rank) {
			wake(p, c, rank, p.Victims[slices.Index(victims, rank)].Event)
		}
	}
	judge(p, ranks, left, !storeDies)
	hits := make([]map[string]int, len(victims))
	for i, rank := range victims {
		if res := ranks[rank].result; res != nil {
			hits[i] = res.Hits
		}
	}
	return hits
}

// tellLeft tells the ranks that are left who they are.
func tellLeft(addr string, left []int) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	s, err := tcpstore.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	text, _ := json.Marshal(left)
	return s.Set(ctx, leftKey, text)
}

// judge is the oracle: the ranks that are left name one of those to which something has happened, the same one if there is a store
// where the first is recorded. Without one a rank may name another that is left and has closed its group because of the loss.
func judge(p *failpointtest.ProcessRun, ranks []*process, left []int, recorded bool) {
	named := map[cohort.Rank]bool{}
	for _, rank := range left {
		res := ranks[rank].result
		if res == nil {
			p.Errorf("rank %d has said nothing", rank)
			continue
		}
		if res.Again != "" {
			p.Errorf("rank %d could not form another group: %s", rank, res.Again)
		}
		if res.Err == "" { // it needed nothing more from the others
			continue
		}
		if !recorded && slices.Contains(left, int(res.Rank)) && ranks[res.Rank].result.lostOne() {
			continue
		}
		if code := cohort.Code(res.Code); code != cohort.PeerLost || res.Rank < 0 || slices.Contains(left, int(res.Rank)) {
			p.Errorf("rank %d, of those left %v: %s (code %v, rank %d)", rank, left, res.Err, code, res.Rank)
			continue
		}
		named[res.Rank] = true
		bound := lostSoon
		if p.Victims[slices.Index(victims, int(res.Rank))].Event == failpointtest.StopEvent {
			bound += heartbeat
		}
		if took := res.Ended.Sub(ranks[res.Rank].event); took > bound {
			p.Errorf("rank %d noticed the end of rank %d after %v", rank, res.Rank, took)
		}
	}
	if len(named) > 1 && recorded {
		p.Errorf("those who are left name %v", named)
	}
}
