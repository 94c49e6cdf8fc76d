// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	fault "github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/internal/testing/testkit"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
)

// liveness bounds what has to happen within a second, on a very busy machine: far less than the timeouts of calls, which are 30 seconds.
const liveness = 15 * time.Second

// stuck is added to the module layers: a chain in which one worker waits, in its forward or its backward pass.
const stuck = `
def stuck(who, when, path, x):
    y = layer(x, weight())
    if rpc.get_worker_info().name == who:
        if when == "forward":
            print("slow", flush=True)
            time.sleep(60)
        if when == "backward":
            y = Slow.apply(y)
    if path:
        return rpc.rpc_sync(path[0], stuck, args=(who, when, path[1:], y))
    return y
`

// stuckOpener begins such a chain and says how it ended.
const stuckOpener = `
import layers
try:
    with dist_autograd.context() as cid:
        y = layers.stuck(%[1]q, %[2]q, %[3]s, torch.ones(%[4]d, 3, dtype=torch.float64, requires_grad=True))
        dist_autograd.backward(cid, [y.sum()])
        if %[2]q == "clean-up":
            print("done", flush=True)
            input()
    print("succeeded", flush=True)
except RuntimeError as e:
    print("raised " + str(e).replace("\n", " "), flush=True)
layers.until(lambda: layers.contexts() == 0, "contexts are left")
`

// stuckRows is how long the value is that goes along the chain: one and a half megabytes, which would be missed.
const stuckRows = 1 << 16

func stuckInput() *autograd.Variable {
	return autograd.Parameter(tensor.Must(tensor.Full(tensor.Float64, 1.0, stuckRows, 3)))
}

// stuck is a Go worker's side of the function of the same name.
func (l *layerOf) stuck(ctx context.Context, who, when string, path []string, x *autograd.Variable) (*autograd.Variable, error) {
	self := rpc.AgentFrom(ctx)
	y := applyLayer(x, l.weight)
	if self.Name() == who {
		switch when {
		case "forward":
			l.begun <- struct{}{}
			<-ctx.Done()
			return nil, context.Cause(ctx)
		case "backward":
			out, err := autograd.Apply(pause{l.begun}, y)
			if err != nil {
				return nil, err
			}
			y = out[0]
		}
	}
	if len(path) == 0 {
		return y, nil
	}
	return rpc.Call[*autograd.Variable](ctx, self, path[0], "layers.stuck", who, when, path[1:], y)
}

// open begins a chain at a Go worker. done is called when the pass has ended well, before the context is closed.
func (l *layerOf) open(ctx context.Context, a *rpc.Agent, who, when string, path []string, done func()) error {
	gctx, c, err := l.engine.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	y := applyLayer(stuckInput(), l.weight)
	if a.Name() == who && when == "backward" {
		out, failed := autograd.Apply(pause{l.begun}, y)
		if failed != nil {
			return failed
		}
		y = out[0]
	}
	y, err = rpc.Call[*autograd.Variable](gctx, a, path[0], "layers.stuck", who, when, path[1:], y)
	if err != nil {
		return err
	}
	if err := c.Backward(gctx, []*autograd.Variable{y.Sum()}); err != nil {
		return err
	}
	done()
	return nil
}

// victim is a Go worker in a process of its own, as its environment describes it.
type victim struct {
	Name string
	Rank int
	Port int
	When string
	Path []string // of the chain that it begins, if it does
}

const victimEnv = "COHORT_TEST_AUTOGRAD_VICTIM"

// TestMain runs the tests, or in a process that TestAutogradKilled starts, a worker that it kills.
func TestMain(m *testing.M) {
	text := os.Getenv(victimEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, "the victim has ended:", beVictim(text))
	os.Exit(1)
}

// beVictim is a Go worker that works until it is killed, or two minutes.
func beVictim(text string) error {
	var v victim
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	st, err := tcpstore.Dial(ctx, "127.0.0.1:"+strconv.Itoa(v.Port))
	if err != nil {
		return err
	}
	m, l := goLayer(v.Name)
	m.reg.MustHandle("layers.stuck", l.stuck)
	if v.When == "step" {
		if err = serveSteps(m, l, blocked{l.begun}); err != nil {
			return err
		}
	}
	lines := bufio.NewScanner(os.Stdin)
	go func() {
		<-l.begun
		fmt.Println("slow")
	}()
	a, err := rpc.Join(ctx, st, v.Name, append(m.opts, rpc.WithRank(fault.Rank(v.Rank)), rpc.WithHandlers(m.reg),
		rpc.WithAddr("127.0.0.1:0"))...)
	if err != nil {
		return err
	}
	fmt.Println("joined")
	if lines.Scan(); v.Path == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	return l.open(ctx, a, v.Name, v.When, v.Path, func() {
		fmt.Println("done")
		<-ctx.Done()
	})
}

// doomed is a process that will be killed.
type doomed interface {
	Signal(sig syscall.Signal)
	Send(t testing.TB, line string)
	Expect(t testing.TB, line string)
}

// goProcess is a victim of Go.
type goProcess struct {
	cmd   *exec.Cmd
	in    io.Writer
	lines chan string
}

func (p *goProcess) Signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

func (p *goProcess) Send(t testing.TB, line string) {
	t.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		t.Fatal(err)
	}
}

func (p *goProcess) Expect(t testing.TB, want string) {
	t.Helper()
	for late := time.After(time.Minute); ; {
		select {
		case line, ok := <-p.lines:
			if !ok {
				t.Fatalf("the victim ended, and was to print %q", want)
			}
			if line == want {
				return
			}
		case <-late:
			t.Fatalf("the victim has not printed %q", want)
		}
	}
}

func startVictim(t *testing.T, v victim) *goProcess {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), victimEnv+"="+string(text))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &goProcess{cmd, in, make(chan string, 64)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		for range p.lines {
		}
		<-read
		_ = cmd.Wait()
	})
	p.Expect(t, "joined")
	return p
}

// killing is a chain of three workers, one of which is killed. A kind per worker: p is PyTorch, g is Go, and G is Go in a process
// of its own.
type killing struct {
	kinds  string
	victim int
	when   string // what the chain is doing
}

func (k killing) name(i int) string {
	return map[byte]string{'p': "py", 'g': "go", 'G': "go"}[k.kinds[i]] + strconv.Itoa(i)
}

// reached reports whether the clean-up can reach a worker: along the chain without the victim from who opened the context, or from a Go
// worker, which notices the death or asks. PyTorch alone has nothing for this.
func (k killing) reached(i int) bool {
	lo, hi := i, i
	for lo > 0 && lo-1 != k.victim {
		lo--
	}
	for hi < len(k.kinds)-1 && hi+1 != k.victim {
		hi++
	}
	return lo == 0 || strings.Contains(k.kinds[lo:hi+1], "g")
}

// TestAutogradKilled kills a worker in the middle of a forward pass, of a backward pass and of a clean-up, in chains of
// PyTorch and Go workers: the worker that has begun the chain gets an error, Go workers name the victim, no context is
// left and no memory, and those who are left go on.
func TestAutogradKilled(t *testing.T) {
	torchtest.EachWith(t, torchtest.TensorPipe, func(t *testing.T, tr *torchtest.Torch) {
		for i, k := range []killing{
			{kinds: "gpg", victim: 1},
			{kinds: "pgp", victim: 2},
			{kinds: "pgp", victim: 0},
			{kinds: "ppg", victim: 1},
			{kinds: "ppg", victim: 0},
			{kinds: "ggp", victim: 2},
			{kinds: "gpp", victim: 2},
			{kinds: "pGp", victim: 1},
			{kinds: "gpG", victim: 2},
			{kinds: "Gpg", victim: 0},
			{kinds: "pgG", victim: 2},
		} {
			for j, when := range []string{"forward", "backward", "clean-up"} {
				if tr != torchtest.V113 && (i+j)%2 > 0 {
					continue // the moments matter to Go, not to the version
				}
				if k.when = when; k.victim == 0 && when == "forward" {
					continue // it has not begun then
				}
				t.Run(fmt.Sprintf("%s,%d,%s", k.kinds, k.victim, when), func(t *testing.T) { killOne(t, tr, k) })
			}
		}
	})
}

// killOne runs a chain, kills its victim and looks at those who are left.
func killOne(t *testing.T, tr *torchtest.Torch, k killing) {
	t.Helper()
	victimName := k.name(k.victim)
	path := []string{k.name(1), k.name(2)}
	var members []member
	engines := map[string]*layerOf{}
	var dies doomed
	for i := range k.kinds {
		name := k.name(i)
		switch k.kinds[i] {
		case 'g':
			m, l := goLayer(name, distautograd.WithLease(time.Second))
			m.opts = append(m.opts, rpc.WithAlloc(tensor.NewStorage)) // the agent keeps its own memory for a while
			m.reg.MustHandle("layers.stuck", l.stuck)
			engines[name] = l
			members = append(members, m)
		case 'G':
			members = append(members, member{name: name, launch: func(rank, port int) {
				v := victim{Name: name, Rank: rank, Port: port, When: k.when}
				if i == 0 {
					v.Path = path
				}
				dies = startVictim(t, v)
			}})
		default:
			script := "import layers"
			if i == 0 {
				script = fmt.Sprintf(stuckOpener, victimName, k.when, pyList(path), stuckRows)
			}
			members = append(members, torchWorker(name, script))
		}
	}
	before := testkit.HeapBytes()
	w := start(t, tr, settings{modules: map[string]string{"layers": layers + stuck}, tolerant: true}, members...)
	if p := w.procs[victimName]; p != nil {
		dies = p
	}
	killed := k.kill(t, w, engines, dies)
	for name, l := range engines {
		for l.engine.Stats() != (distautograd.Stats{}) && time.Since(killed) < liveness {
			time.Sleep(time.Millisecond)
		}
		if s := l.engine.Stats(); s != (distautograd.Stats{}) {
			t.Errorf("%s still holds %+v after %v", name, s, liveness)
		}
	}
	for name, l := range engines {
		k.afterwards(t, w, name, l)
	}
	if grown := testkit.HeapBytes() - before; grown > stuckRows*3*8/2 {
		t.Errorf("%d bytes are left", grown)
	}
}

// kill runs the chain and kills the victim in the middle of it. It checks what the worker that has begun the chain is told, and returns
// when it was killed.
func (k killing) kill(t *testing.T, w *running, engines map[string]*layerOf, dies doomed) (killed time.Time) {
	t.Helper()
	first, path := k.name(0), []string{k.name(1), k.name(2)}
	kill := func() {
		dies.Signal(syscall.SIGKILL)
		killed = time.Now()
	}
	var ended chan error
	closing := make(chan struct{})
	done := make(chan struct{})
	for name, p := range w.procs {
		if name != first {
			p.Send(t, "go")
			p.Expect(t, "finished") // its script has nothing to do, and what it prints now is of the chain
		}
	}
	if l := engines[first]; l != nil {
		ended = make(chan error, 1)
		go func() {
			ended <- l.open(testContext(t), w.agents[first], k.name(k.victim), k.when, path, func() {
				close(done)
				<-closing
			})
		}()
	} else if p := w.procs[first]; p != nil {
		p.Send(t, "go")
	} else {
		dies.Send(t, "go")
	}
	if k.when != "clean-up" {
		dies.Expect(t, "slow")
		kill()
	} else {
		switch {
		case ended != nil:
			<-done
		case k.victim == 0:
			dies.Expect(t, "done")
			kill()
		default:
			w.procs[first].Expect(t, "done")
		}
		if k.victim != 0 { // it does not answer the clean-up any more
			dies.Signal(syscall.SIGSTOP)
			if close(closing); ended == nil {
				w.procs[first].Send(t, "go on")
			}
			time.Sleep(50 * time.Millisecond)
			kill()
		}
	}
	if k.victim != 0 {
		k.told(t, w, ended, killed)
	}
	return killed
}

// told checks how the chain has ended for the worker that began it.
func (k killing) told(t *testing.T, w *running, ended chan error, killed time.Time) {
	t.Helper()
	names := []string{k.name(k.victim)}
	if k.victim == 2 && k.kinds[1] == 'p' {
		names = append(names, k.name(1)) // PyTorch passes the error on, and does not say whose connection it was
	}
	named := func(text string) bool {
		for _, name := range names {
			if strings.Contains(text, name) {
				return true
			}
		}
		return false
	}
	if ended == nil {
		line := w.procs[k.name(0)].Line(t)
		for !strings.HasPrefix(line, "raised ") && line != "succeeded" {
			line = w.procs[k.name(0)].Line(t)
		}
		if (line == "succeeded") != (k.when == "clean-up") || k.kinds[1] == 'g' && k.when != "clean-up" && !named(line) {
			t.Errorf("PyTorch has %s", line)
		}
		w.procs[k.name(0)].Expect(t, "finished")
	} else {
		var err error
		select {
		case err = <-ended:
		case <-time.After(4 * liveness):
			t.Fatal("the chain has not ended")
		}
		var e *fault.Error
		switch {
		case k.when == "clean-up":
			if err != nil {
				t.Errorf("the chain was at its end: %v", err)
			}
		case !errors.As(err, &e) || !named(err.Error()):
			t.Errorf("the error names neither of %v: %v", names, err)
		case k.victim == 1 && !errors.Is(err, fault.PeerLost):
			t.Errorf("the next worker was killed: %v", err)
		}
	}
	if took := time.Since(killed); took > liveness {
		t.Errorf("it took %v until who began the chain was told", took)
	}
}

// afterwards checks that those who are left hold no context, as far as a clean-up can reach them, and that they still work.
func (k killing) afterwards(t *testing.T, w *running, name string, l *layerOf) {
	t.Helper()
	ctx, a := testContext(t), w.agents[name]
	for i := range k.kinds {
		other := k.name(i)
		if i == k.victim || other == name {
			continue
		}
		if k.reached(i) {
			n := -1
			for end := time.Now().Add(2 * liveness); n != 0 && time.Now().Before(end); {
				var err error
				if n, err = rpc.Call[int](ctx, a, other, "layers.contexts"); err != nil {
					t.Fatal(err)
				}
			}
			if n != 0 {
				t.Errorf("%s still has %d contexts", other, n)
			}
		}
		l.chain(ctx, t, a, []string{other})
	}
	l.free(t)
}
