// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// puppetSource is a PyTorch rank that does what the lines on its input say.
const puppetSource = `
import sys, datetime, torch, torch.distributed as dist
rank, size, port = map(int, sys.argv[1:4])
old = {} if torch.__version__.startswith("1.") else {"use_libuv": False}
group = None
print("ready", flush=True)
for line in sys.stdin:
    what, *args = line.split()
    try:
        limit = datetime.timedelta(seconds=int(args[-1]))
        if what == "init":
            store = dist.TCPStore("127.0.0.1", port, size, False, timeout=limit, wait_for_workers=False, **old)
            dist.init_process_group("gloo", store=dist.PrefixStore(args[0], store), rank=rank, world_size=size, timeout=limit)
        elif what == "group":
            group = dist.new_group(timeout=limit)
        elif what == "reduce":
            dist.all_reduce(torch.ones(5), group=group)
        elif what == "destroy":
            dist.destroy_process_group()
        print(what + " done", flush=True)
    except Exception as e:
        print(what + " error " + str(e).replace("\n", " ")[:200], flush=True)
`

// puppet is a Go rank that does the same.
type puppet struct {
	rank, size     int
	client         *tcpstore.Client
	peers          group.Peers
	world, current *group.Group
}

func newPuppet(ctx context.Context, rank, size, port int, peers string) (*puppet, error) {
	client, err := tcpstore.Dial(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	return &puppet{rank: rank, size: size, client: client, peers: group.Peers(peers)}, err
}

func (p *puppet) do(ctx context.Context, line string) (err error) {
	words := strings.Fields(line)
	seconds, _ := strconv.Atoi(words[len(words)-1])
	limit := time.Duration(seconds) * time.Second
	switch words[0] {
	case "init":
		p.world, err = group.New(ctx, p.client, cohort.Rank(p.rank), p.size, group.WithBareStore(),
			group.WithStorePrefix(words[1]), group.WithConnectTimeout(limit), group.WithPeers(p.peers))
		p.current = p.world
	case "group":
		p.current, err = p.world.NewGroup(ctx, nil, group.WithConnectTimeout(limit))
	case "reduce":
		err = group.AllReduceSlice(ctx, p.current, make([]float32, 5), group.Sum, group.WithTimeout(limit))
	case "destroy":
		p.close()
	}
	return err
}

func (p *puppet) close() {
	for _, g := range []*group.Group{p.current, p.world} {
		if g != nil {
			_ = g.Close()
		}
	}
	p.current, p.world = nil, nil
}

// servePuppet is a puppet in a process of its own.
func servePuppet(rank, size, port int, peers string) int {
	ctx := context.Background()
	p, err := newPuppet(ctx, rank, size, port, peers)
	if err != nil {
		return 3
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		what, _, _ := strings.Cut(lines.Text(), " ")
		if err := p.do(ctx, lines.Text()); err != nil {
			fmt.Println(what, "error", err)
			continue
		}
		fmt.Println(what, "done")
	}
	return 0
}

// torchPlayer is a PyTorch rank.
type torchPlayer struct{ *torchtest.Proc }

func (p torchPlayer) AwaitEnd(testing.TB) { <-p.Done() }

// AwaitEnd returns when the process has ended.
func (p *goProcess) AwaitEnd(t testing.TB) {
	t.Helper()
	for range p.lines {
	}
}

// player is a rank in a process of its own.
type player interface {
	Signal(sig syscall.Signal)
	Send(t testing.TB, line string)
	Line(t testing.TB) string
	AwaitEnd(t testing.TB)
}

// theatre is a world of puppets: rank 0 is Go's and has the store, ranks 1 and 3 are PyTorch's, rank 2 is Go's.
type theatre struct {
	port    int
	peers   string
	torch   *torchtest.Torch
	own     map[int]*puppet // in this process
	players map[int]player
}

const stageSize = 4

// fill starts the ranks that are not there, and returns when they can be told what to do: PyTorch takes seconds to
// load. apart says that rank 2 gets a process of its own.
func (s *theatre) fill(ctx context.Context, t *testing.T, apart bool) {
	t.Helper()
	var started []player
	start := func(r int, p player) { s.players[r], started = p, append(started, p) }
	for r := range stageSize {
		switch {
		case s.own[r] != nil || s.players[r] != nil:
		case r%2 == 1:
			start(r, torchPlayer{s.torch.Start(t,
				torchtest.Script{
					Name: fmt.Sprintf("rank%d.py", r), Source: puppetSource,
					Args: []string{strconv.Itoa(r), strconv.Itoa(stageSize), strconv.Itoa(s.port)},
				})})
		case r == 2 && apart:
			start(r, startGo(t, fmt.Sprintf("puppet %d %d %d %s", r, stageSize, s.port, s.peers)))
		default:
			p, err := newPuppet(ctx, r, stageSize, s.port, s.peers)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				p.close()
				_ = p.client.Close()
			})
			s.own[r] = p
		}
	}
	for _, p := range started {
		if line := p.Line(t); line != "ready" {
			t.Fatalf("a rank that was started said %q", line)
		}
	}
}

// all has the ranks in this process and the others, but one, do something and returns the errors of the ranks in this
// process and the lines of the others.
func (s *theatre) all(ctx context.Context, t *testing.T, line, apart string, but int) (errs map[int]error, said map[int]string) {
	t.Helper()
	errs, said = map[int]error{}, map[int]string{}
	for r, p := range s.players {
		if r != but {
			p.Send(t, apart)
		}
	}
	var mu sync.Mutex
	var tasks sync.WaitGroup
	for r, p := range s.own {
		tasks.Go(func() {
			err := p.do(ctx, line)
			mu.Lock()
			errs[r] = err
			mu.Unlock()
		})
	}
	tasks.Wait()
	for r, p := range s.players {
		if r != but {
			said[r] = p.Line(t)
		}
	}
	return errs, said
}

// must has all ranks do something that succeeds.
func (s *theatre) must(ctx context.Context, t *testing.T, line string) {
	t.Helper()
	errs, said := s.all(ctx, t, line, line, -1)
	for r, err := range errs {
		if err != nil {
			t.Fatalf("%s: rank %d: %v", line, r, err)
		}
	}
	for r, text := range said {
		if !strings.HasSuffix(text, " done") {
			t.Fatalf("%s: rank %d: %s", line, r, text)
		}
	}
}

// TestFaultAtAMoment: a Go rank or a PyTorch rank is killed or stopped in the making of the world or of a group, in the
// first collective or in the last, or when it has ended the group. The Go ranks that are left name it within the time
// that they have, PyTorch's end too, and the same Go processes form the next world over the same store.
func TestFaultAtAMoment(t *testing.T) {
	const (
		limit    = 5  // seconds, of Go's calls at the moment
		torchs   = 12 // of PyTorch's: the rank that gives up first must not be declared dead
		patience = 30 // of everything else
	)
	moments := []struct {
		name         string
		before       []string
		victim, rest string
		stops        bool // SIGSTOP is tried too, which takes long: TestMixedSurvivors has others
	}{
		{"init", nil, "init first", "init first", true},
		{"new_group", []string{"init first 30"}, "group", "group", false},
		{"first collective", []string{"init first 30"}, "reduce", "reduce", false},
		{"last collective", []string{"init first 30", "group 30", "reduce 30", "reduce 30"}, "reduce", "reduce", false},
		{"destroy", []string{"init first 30", "reduce 30"}, "destroy", "reduce", false},
	}
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		for _, victim := range []int{2, 3} {
			for _, m := range moments {
				for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
					if sig == syscall.SIGSTOP && !m.stops {
						continue
					}
					t.Run(fmt.Sprintf("rank %d, %s, %v", victim, m.name, sig), func(t *testing.T) {
						t.Parallel()
						// PyTorch tries for a minute to connect to one who was killed
						ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
						defer cancel()
						server, err := tcpstore.Listen("127.0.0.1:0")
						if err != nil {
							t.Fatal(err)
						}
						defer func() { _ = server.Close() }()
						s := &theatre{
							port: server.Port(), peers: "torch-" + tr.About(t).Version, torch: tr,
							own: map[int]*puppet{}, players: map[int]player{},
						}
						s.fill(ctx, t, victim == 2)
						for _, line := range m.before {
							s.must(ctx, t, line)
						}
						s.players[victim].Send(t, fmt.Sprintf("%s %d", m.victim, patience))
						time.Sleep(200 * time.Millisecond) // any moment will do
						s.players[victim].Signal(sig)
						if sig == syscall.SIGKILL {
							s.players[victim].AwaitEnd(t) // until then others can connect to it
						}
						began := time.Now()
						errs, said := s.all(ctx, t, fmt.Sprintf("%s %d", m.rest, limit), fmt.Sprintf("%s %d", m.rest, torchs), victim)
						t.Logf("after %v: %v %v", time.Since(began), errs, said)
						making := m.victim == "init first" || m.victim == "group"
						for r, err := range errs {
							if err == nil && making && sig == syscall.SIGSTOP {
								continue // the system connects for a stopped process
							}
							e := new(cohort.Error)
							if !errors.As(err, &e) || e.Code != cohort.PeerLost && e.Code != cohort.DeadlineExceeded {
								t.Errorf("rank %d: %v", r, err)
								continue
							}
							if sig == syscall.SIGKILL && !making && e.Code != cohort.PeerLost {
								t.Errorf("rank %d does not say that a rank was lost: %v", r, err)
							}
							if (sig == syscall.SIGKILL || making) && e.Rank != cohort.Rank(victim) {
								t.Errorf("rank %d does not name rank %d: %v", r, victim, err)
							}
						}
						for r, text := range said {
							if !strings.Contains(text, " error ") && (!making || sig != syscall.SIGSTOP) {
								t.Errorf("rank %d: %s", r, text)
							}
						}
						for r, p := range s.players { // PyTorch's processes start anew, as a launcher does it
							p.Signal(syscall.SIGKILL)
							delete(s.players, r)
						}
						for _, p := range s.own {
							p.close()
						}
						s.fill(ctx, t, victim == 2)
						s.must(ctx, t, "init next 60")
						s.must(ctx, t, "reduce 60")
					})
				}
			}
		}
	})
}
