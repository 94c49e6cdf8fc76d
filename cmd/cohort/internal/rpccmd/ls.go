// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpccmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// rpcWorld is what the store tells about an RPC world.
type rpcWorld struct {
	Round   int         `json:"round"`
	Static  bool        `json:"static"`
	Workers []rpcMember `json:"workers"`
}

// rpcMember is one worker of it.
type rpcMember struct {
	ID   int    `json:"id"`
	Name string `json:"name"`
	Addr string `json:"addr,omitempty"`
	Go   bool   `json:"go"`
}

// worker finds a worker by its name; op is what the error says that it was for.
func (w *rpcWorld) worker(op, name string) (rpcMember, error) {
	at := slices.IndexFunc(w.Workers, func(m rpcMember) bool { return m.Name == name })
	if at < 0 {
		e := cohort.Newf(op, cohort.NotFound, "no such worker; the store names %s", w.names())
		e.Key = name
		return rpcMember{}, e
	}
	return w.Workers[at], nil
}

func (a *app) rpcListCommand() *cobra.Command {
	var flags rpcFlags
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the workers of an RPC world",
		Long: strings.TrimSpace(`
List the workers in the store: their ids, names, kinds and addresses. Nothing is sent
to them. In a static world these are all workers that ever started; a dynamic world
removes a worker that leaves in order. A worker without an address is still starting.`),
		Example: strings.Trim(`
  cohort rpc ls
  cohort rpc ls --addr node0:29500 --round 0 --json`, "\n"),
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return flags.WithStore(cmd.Context(), a.App, func(ctx context.Context, s *tcpstore.Client) error {
				world, err := readRPCWorld(ctx, s, flags.round)
				if err != nil {
					return err
				}
				return a.printRPCWorld(world)
			})
		},
	}
	flags.Bind(a.App, cmd)
	return cmd
}

func (a *app) printRPCWorld(w *rpcWorld) error {
	if a.JSON {
		return a.Print("rpc.ls", w, "")
	}
	kind := "dynamic"
	if w.Static {
		kind = "static"
	}
	width := len("NAME")
	for _, m := range w.Workers {
		width = max(width, len(m.Name))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s world, round %d, %s\n", kind, w.Round, tui.Plural(len(w.Workers), "worker"))
	fmt.Fprintf(&b, "%5s  %-*s  %-7s  %s", "ID", width, "NAME", "KIND", "ADDRESS")
	for _, m := range w.Workers {
		kind := "PyTorch"
		if m.Go {
			kind = "Go"
		}
		fmt.Fprintf(&b, "\n%5d  %-*s  %-7s  %s", m.ID, width, printable.Line(m.Name), kind, cmp.Or(printable.Line(m.Addr), "-"))
	}
	return a.PrintText(b.String())
}

// The keys of PyTorch's RPC start, below roundPrefix.
const (
	rpcKindKey    = "rpcIsStaticGroup"
	rpcMembersKey = "names/_ALL_WORKER_INFOS"
	rpcMaxWorkers = 1 << 15
)

func roundPrefix(round int) string { return "rpc_prefix_" + strconv.Itoa(round) }

// readRPCWorld reads a world from its store without waiting for anything. A negative round means the latest.
func readRPCWorld(ctx context.Context, s store.Store, round int) (*rpcWorld, error) {
	if round < 0 {
		var err error
		if round, err = latestRound(ctx, s); err != nil {
			return nil, err
		}
	}
	p := store.Prefix(roundPrefix(round), s)
	kind, err := getNow(ctx, p, rpcKindKey)
	if err != nil {
		if errors.Is(err, cohort.NotFound) {
			err = cohort.Newf("rpc", cohort.NotFound, "no RPC world of round %d in this store", round)
		}
		return nil, err
	}
	w := &rpcWorld{Round: round, Static: string(kind) == "true"}
	if w.Static {
		w.Workers, err = staticMembers(ctx, p)
	} else {
		w.Workers, err = dynamicMembers(ctx, p)
	}
	if err != nil {
		return nil, err
	}
	for i := range w.Workers {
		m := &w.Workers[i]
		addr, err := getNow(ctx, p, "addrs/"+m.Name)
		if err != nil && !errors.Is(err, cohort.NotFound) {
			return nil, err
		}
		m.Addr = strings.TrimPrefix(string(addr), "uv://")
		if m.Go, err = p.Check(ctx, "cohort/go/"+m.Name); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(w.Workers, func(x, y rpcMember) int { return x.ID - y.ID })
	return w, nil
}

func latestRound(ctx context.Context, s store.Store) (int, error) {
	for round := 0; ; round++ {
		there, err := s.Check(ctx, roundPrefix(round)+"/"+rpcKindKey)
		if err != nil {
			return 0, err
		}
		if there {
			continue
		}
		// A process that skipped a round is out of step, but its world is there.
		if there, err = s.Check(ctx, roundPrefix(round+1)+"/"+rpcKindKey); err != nil {
			return 0, err
		}
		switch {
		case there:
		case round == 0:
			return 0, cohort.New("rpc", cohort.NotFound, "no RPC world has started in this store")
		default:
			return round - 1, nil
		}
	}
}

// getNow returns a value, or NotFound without waiting for it.
func getNow(ctx context.Context, s store.Store, key string) ([]byte, error) {
	there, err := s.Check(ctx, key)
	if err != nil {
		return nil, err
	}
	if !there {
		e := cohort.New("store: get", cohort.NotFound, "")
		e.Key = key
		return nil, e
	}
	return s.Get(ctx, key)
}

// staticMembers reads names/0, names/1 and so on. Workers that start out of order leave gaps for a moment.
func staticMembers(ctx context.Context, s store.Store) ([]rpcMember, error) {
	const gap = 16
	var members []rpcMember
	for id, missing := 0, 0; id < rpcMaxWorkers && missing < gap; id++ {
		name, err := getNow(ctx, s, "names/"+strconv.Itoa(id))
		if errors.Is(err, cohort.NotFound) {
			missing++
			continue
		}
		if err != nil {
			return nil, err
		}
		missing = 0
		members = append(members, rpcMember{ID: id, Name: string(name)})
	}
	return members, nil
}

// dynamicMembers reads the list "name-id,name-id,".
func dynamicMembers(ctx context.Context, s store.Store) ([]rpcMember, error) {
	list, err := getNow(ctx, s, rpcMembersKey)
	if errors.Is(err, cohort.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	members := []rpcMember{}
	for entry := range strings.SplitSeq(string(list), ",") {
		if entry == "" {
			continue
		}
		at := strings.LastIndexByte(entry, '-')
		id, err := strconv.Atoi(entry[at+1:])
		if at < 0 || err != nil {
			return nil, cohort.Newf("rpc", cohort.Protocol, "the entry %q in the list of workers is not name-id", entry)
		}
		members = append(members, rpcMember{ID: id, Name: entry[:at]})
	}
	return members, nil
}
