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
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

type serveFlags struct {
	addr      string
	http      string
	withStdin bool
	drain     time.Duration
	verbose   bool
	forget    bool
	dataDir   string
	allowUIDs string
	users     []uint32 // those of allowUIDs
	cluster   clusterFlags
	loops     int
	limits    tcpstore.Limits
}

func (a *app) serveCommand() *cobra.Command {
	var flags serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a store that PyTorch cannot tell from its own",
		Long: strings.TrimSpace(`
Serve a store for PyTorch 1.13 and 2.x clients and Go processes, all on one port.
It prints a line when it is ready. It stops on SIGTERM or SIGINT and prints a summary.

PyTorch ranks use it as their store, without a change to their code, if these
variables are set for each of them in addition to RANK and WORLD_SIZE:
  MASTER_ADDR, MASTER_PORT             the address of this store
  TORCHELASTIC_USE_AGENT_STORE=True    no rank starts its own store
  TORCHELASTIC_RESTART_COUNT=0         PyTorch 1.13 requires it
Or give the store to init_process_group: dist.TCPStore(host, port, world_size,
is_master=False), with use_libuv=False if PyTorch 2 was built without libuv.
Start a new store for each run of a job, because the keys of one run would mislead the
next. Or clear it in between ("cohort store clear"), or use --forget.

With --data-dir every change is on the disk before it is answered, and a store that
is started again with the folder goes on where it was: after kill -9 or a power cut,
nothing that was acknowledged is lost. When the disk is full, changes are refused
until there is room, and reads go on. See also "cohort store backup" and "check".

PyTorch's protocol has no password. Other users of this machine are refused, except
those of --allow-uid, but a store that other machines can reach can be read and
written by all of them. So the default address is reached only from this machine. To
serve others, give --addr the address of the network that the job uses.`),
		Example: strings.Trim(`
  cohort store serve
  cohort store serve --addr 10.0.0.1:29500 --http 127.0.0.1:9090
  cohort store serve --data-dir /var/lib/cohort     a store that survives a restart
  cohort store serve --data-dir /var/lib/cohort --name a --cluster a=node0:29600,b=node1:29600,c=node2:29600     ... or a machine
  cohort store serve --addr 127.0.0.1:0 --json      take a free port and print it`, "\n"),
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flags.check(); err != nil {
				return err
			}
			return a.serve(cmd.Context(), flags)
		},
	}
	f := cmd.Flags()
	f.StringVar(&flags.addr, "addr", "127.0.0.1:"+command.DefaultPort, "address to serve on, HOST:PORT; port 0 takes a free one")
	f.StringVar(&flags.http, "http", "", "serve /metrics (Prometheus), /healthz and /stats (JSON) on this address")
	f.BoolVar(&flags.withStdin, "exit-with-stdin", false, "also stop when standard input closes")
	f.DurationVar(&flags.drain, "drain", 0, "when told to stop, wait up to this time for clients to disconnect")
	f.BoolVar(&flags.forget, "forget", false, "remove all keys whenever the last client disconnects")
	f.StringVar(&flags.dataDir, "data-dir", "", "keep the store in this folder, so that it outlives the process and the machine's power")
	flags.cluster.bind(f)
	f.IntVar(&flags.loops, "loops", min(max(runtime.GOMAXPROCS(0)/2, 1), storeLoopsUsual),
		"event loops that share the connections; 1 to 64")
	f.StringVar(&flags.allowUIDs, "allow-uid", "", "also let these users of this host connect, `UID[,UID]`; your own and root always may")
	f.BoolVarP(&flags.verbose, "verbose", "v", false, "log more than warnings, on standard error")
	defaults := tcpstore.DefaultLimits()
	f.IntVar(&flags.limits.Conns, "max-connections", defaults.Conns, "most connections at a time (a PyTorch 1.13 client has two)")
	f.IntVar(&flags.limits.Key, "max-key", defaults.Key, "longest key in bytes")
	f.IntVar(&flags.limits.Value, "max-value", defaults.Value, "longest value in bytes")
	f.Int64Var(&flags.limits.Memory, "max-memory", defaults.Memory,
		"most bytes that the server holds for clients; half of it is for keys and values")
	return cmd
}

// storeLoopsUsual is the largest number of loops that is used unless told otherwise: more gain little, see decision 33.
const storeLoopsUsual = 8

// storeLoopsMost is the largest number of loops that tcpstore.WithLoops takes.
const storeLoopsMost = 64

// serveOwnMemory is what the process has beside what clients make it hold.
const serveOwnMemory = 256 << 20

// check refuses limits that leave nothing to serve.
func (f *serveFlags) check() error {
	limits := []struct {
		name  string
		value int64
	}{
		{"max-connections", int64(f.limits.Conns)},
		{"max-key", int64(f.limits.Key)},
		{"max-value", int64(f.limits.Value)},
		{"max-memory", f.limits.Memory},
	}
	for _, limit := range limits {
		if limit.value < 1 {
			return command.Usage(fmt.Errorf("--%s %d: it must be more than zero", limit.name, limit.value))
		}
	}
	if f.loops < 1 || f.loops > storeLoopsMost {
		return command.Usage(fmt.Errorf("--loops %d: it must be from 1 to %d", f.loops, storeLoopsMost))
	}
	if f.drain < 0 {
		return command.Usage(fmt.Errorf("--drain %s: it cannot be negative", f.drain))
	}
	return nil
}

// serve runs a server until ctx ends.
func (a *app) serve(ctx context.Context, flags serveFlags) error {
	addr, err := listenAddr(flags.addr)
	if err != nil {
		return err
	}
	level := slog.LevelWarn
	if flags.verbose {
		level = slog.LevelDebug
	}
	if flags.users, err = peeruid.Parse(flags.allowUIDs); err != nil {
		return command.Usage(fmt.Errorf("--allow-uid %s: %w", flags.allowUIDs, err))
	}
	log := slog.New(a.LogHandler(level))
	opts := []tcpstore.ServerOption{
		tcpstore.WithLimits(flags.limits), tcpstore.WithLogger(log),
		tcpstore.WithLoops(flags.loops), tcpstore.WithAllowedUIDs(flags.users...),
	}
	if flags.forget {
		opts = append(opts, tcpstore.WithForget())
	}
	// The collector works harder before the process takes more than the limit, instead of letting garbage double it.
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(flags.limits.Memory + serveOwnMemory))
	store, err := a.listen(ctx, addr, &flags, opts, log)
	if err != nil {
		return err
	}
	defer store.end()
	select {
	case <-store.ready:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-store.done:
		return store.why()
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	httpAddr := ""
	if flags.http != "" {
		stop, bound, err := serveHTTP(flags.http, func() tcpstore.Stats { return store.server().Stats() }, flags.users, cancel)
		if err != nil {
			return err
		}
		defer stop()
		httpAddr = bound
	}
	if flags.withStdin {
		// This goroutine ends with standard input or, like every read of it, with the process.
		go func() {
			_, _ = io.Copy(io.Discard, a.In)
			cancel(errStdinClosed)
		}()
	}
	if err := a.ready(store.server(), httpAddr); err != nil {
		return err
	}
	a.warnOpen(store.server().Addr())
	select {
	case <-ctx.Done():
	case <-store.done: // never, if it serves alone
		return store.why()
	}
	return a.endServe(store, context.Cause(ctx), flags.drain)
}

// warnOpen says who can use a store that is not on the loopback interface.
func (a *app) warnOpen(addr net.Addr) {
	tcp, ok := addr.(*net.TCPAddr)
	switch {
	case !ok || tcp.IP.IsLoopback():
	case tcp.IP.IsUnspecified():
		a.Note("cohort store: it listens on all networks of this machine, and every machine there can read and change it: PyTorch's " +
			"protocol has no password. Give --addr the address of the job's network")
	default:
		a.Note(fmt.Sprintf("cohort store: every machine that can reach %s can read and change it: PyTorch's protocol has no password",
			tcp.IP))
	}
}

var errStdinClosed = errors.New("the end of standard input")

// listenAddr completes the address of --addr.
func listenAddr(addr string) (string, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return "", command.Usage(fmt.Errorf("--addr %s: %w; write HOST:PORT, an IPv6 host in brackets", addr, err))
	}
	return addr, nil
}

// ready prints the one line that says where the server is.
func (a *app) ready(server *tcpstore.Server, httpAddr string) error {
	object := map[string]any{"event": "ready", "addr": server.Addr().String(), "port": server.Port()}
	text := "cohort store: ready on " + server.Addr().String()
	if httpAddr != "" {
		object["http"] = httpAddr
		text += ", metrics on http://" + httpAddr + "/metrics"
	}
	return a.Print("store.serve", object, text)
}

// endServe ends the server and prints the summary.
func (a *app) endServe(store served, cause error, drain time.Duration) error {
	server := store.server()
	stats := server.Stats()
	if drain > 0 && stats.Clients() > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), drain)
		_ = server.Shutdown(ctx) // clients that stay are counted below
		cancel()
	}
	store.end()
	final := server.Stats()
	uptime := final.Time.Sub(final.Started)
	object := map[string]any{
		"event": "stopped", "cause": cause.Error(), "uptime_s": seconds(uptime), "accepted": final.Accepted,
		"cut": final.Cut, "requests": final.Requests(), "keys": final.Keys, "open": final.Clients(), "waiting": final.Waiting,
	}
	text := fmt.Sprintf("cohort store: stopped by %s after %s: %s connections, %s requests, %s keys",
		//nolint:gosec // counters stay far below 2^63
		cause, tui.Age(uptime), tui.Count(int64(final.Accepted)), tui.Count(int64(final.Requests())), tui.Count(int64(final.Keys)))
	if n := final.Clients(); n > 0 {
		text += fmt.Sprintf("; %d connections were still open", n)
	}
	if final.Cut > 0 {
		text += fmt.Sprintf("; %d clients were cut", final.Cut)
	}
	return a.Print("store.serve", object, text)
}
