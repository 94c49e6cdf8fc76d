// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/store/storegate"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
)

type gatewayFlags struct {
	upstreams []string
	addr      string
	allowUIDs string
	conns     int
	withStdin bool
}

func (a *app) gatewayCommand() *cobra.Command {
	var flags gatewayFlags
	cmd := &cobra.Command{
		Use:   "gateway --upstream HOST:PORT[,HOST:PORT]",
		Short: "Let the processes of this host use a store elsewhere, over one connection that may break",
		Long: strings.TrimSpace(`
Serve the processes of this host, PyTorch's of every version and Go's, by a cohort store
that runs elsewhere. They connect to the gateway, and keep their connections when that of
the gateway to the store breaks: it connects again, and what they had under way goes on.
Nothing is applied twice, and nothing is lost. Each process still gives up when its own
timeout has passed.

With several addresses the gateway uses the first that answers, and then the next one
whenever that is lost.

What several processes of this host want at the same time is asked for once: equal reads
and waits, additions to one counter, arrivals at one barrier.

PyTorch's processes find it by MASTER_ADDR=127.0.0.1, MASTER_PORT and
TORCHELASTIC_USE_AGENT_STORE=True.

The store must be cohort's, of this version or later. If it is kept in a folder (--data-dir)
it may be killed and started again, and if it is kept on several machines (--cluster) its
leader may die: nothing is lost then, and clients go on. Name all members of such a one. A
gateway cannot watch keys (watch_key of PyTorch 1.13).`),
		Example: strings.Trim(`
  cohort store gateway --upstream 10.0.0.1:29500
  cohort store gateway --upstream node0:29500,node1:29500 --addr 127.0.0.1:29400`, "\n"),
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.gateway(cmd.Context(), flags) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&flags.upstreams, "upstream", nil, "addresses of the store, HOST:PORT[,HOST:PORT]")
	f.StringVar(&flags.addr, "addr", "127.0.0.1:"+command.DefaultPort, "address to serve on, HOST:PORT; port 0 takes a free one")
	f.IntVar(&flags.conns, "max-connections", 1<<14, "most connections at a time (a PyTorch 1.13 client has two)")
	f.StringVar(&flags.allowUIDs, "allow-uid", "", "also let these users of this host connect, `UID[,UID]`; your own and root always may")
	f.BoolVar(&flags.withStdin, "exit-with-stdin", false, "also stop when standard input closes")
	return cmd
}

// gateway runs a gateway until ctx ends.
func (a *app) gateway(ctx context.Context, flags gatewayFlags) error {
	if len(flags.upstreams) == 0 {
		return command.Usage(errors.New("--upstream is missing: give the address of the store, HOST:PORT"))
	}
	if flags.conns < 1 {
		return command.Usage(fmt.Errorf("--max-connections %d: it must be more than zero", flags.conns))
	}
	addr, err := listenAddr(flags.addr)
	if err != nil {
		return err
	}
	users, err := peeruid.Parse(flags.allowUIDs)
	if err != nil {
		return command.Usage(fmt.Errorf("--allow-uid %s: %w", flags.allowUIDs, err))
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return portowner.Named(addr, err)
		}
		return err
	}
	g, err := storegate.Serve(l, storegate.Options{
		Upstreams: flags.upstreams, Conns: flags.conns, AllowUIDs: users, Logger: slog.New(a.LogHandler(slog.LevelInfo)),
	})
	if err != nil {
		return err
	}
	defer func() { _ = g.Close() }()
	var reaching sync.WaitGroup
	defer reaching.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	reaching.Go(func() {
		if refused := g.Reached(ctx); errors.Is(refused, cohort.NotSupported) {
			cancel(refused)
		}
	})
	if flags.withStdin {
		go func() { // which ends as that of serve does
			_, _ = io.Copy(io.Discard, a.In)
			cancel(errStdinClosed)
		}()
	}
	err = a.Print("store.gateway", map[string]any{"event": "ready", "addr": g.Addr().String(), "upstreams": flags.upstreams},
		"cohort store gateway: ready on "+g.Addr().String()+", for the store at "+strings.Join(flags.upstreams, " or "))
	if err != nil {
		return err
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); errors.Is(cause, cohort.NotSupported) {
		return cause
	}
	return a.endGateway(g, context.Cause(ctx))
}

// endGateway prints the summary.
func (a *app) endGateway(g *storegate.Gateway, cause error) error {
	s := g.State()
	text := fmt.Sprintf("cohort store gateway: stopped by %s: %s requests of clients became %s to the store", cause,
		//nolint:gosec // counters stay far below 2^63
		tui.Count(int64(s.Requests)), tui.Count(int64(s.Asked)))
	if s.Times > 1 {
		text += fmt.Sprintf("; it was reached %d times, and %d requests were sent again", s.Times, s.Repeated)
	}
	return a.Print("store.gateway", map[string]any{
		"event": "stopped", "cause": cause.Error(), "reached": s.Times, "requests": s.Requests, "upstream_requests": s.Asked,
		"upstream_requests_repeated": s.Repeated,
	}, text)
}
