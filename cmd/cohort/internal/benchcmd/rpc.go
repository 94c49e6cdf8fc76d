// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package benchcmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/childproc"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/operators"
	"github.com/cohort-dist/cohort/tensor"
)

// The functions that a benchmark worker serves. The first is what Python's benchmarks call: a function of the script.
const (
	pythonUDF   = "__main__.udf"
	plainUDF    = "bench.udf"
	borrowUDF   = "bench.borrow"
	addOperator = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
)

func (a *app) rpcCommand() *cobra.Command {
	var transport, peer, only string
	var dur time.Duration
	cmd := &cobra.Command{
		Use:   "rpc",
		Short: "Measure calls and remote references between two processes",
		Long: strings.TrimSpace(`
Start a second process, make both workers of an RPC world on this machine's loopback
interface, and measure. Each value is one line of JSON: group, case, peer, value and
unit, with the names that bench/peers uses, so that they can be compared with PyTorch,
net/rpc and grpc-go. Process ids and the transport go to standard error.

--transport auto is what Go workers choose among themselves; uv is TensorPipe's wire,
which they use with PyTorch workers.`),
		Example: strings.Trim(`
  cohort bench rpc
  cohort bench rpc --transport uv --peer cohort-uv --dur 3s
  cohort bench rpc --only '^sync_udf'`, "\n"),
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := transports(transport); err != nil {
				return err
			}
			if dur <= 0 {
				return command.Usage(fmt.Errorf("--dur %s: it must be more than zero", dur))
			}
			cases, err := regexp.Compile(only)
			if err != nil {
				return command.Usage(fmt.Errorf("--only: %w", err))
			}
			m := &meter{out: a.Out, group: "rpc", peer: peer, dur: dur, only: cases}
			return command.Explain(cmd.Context(), a.measureRPC(cmd.Context(), m, transport))
		},
	}
	cmd.Flags().StringVar(&transport, "transport", "auto", "auto, cohort or uv")
	cmd.Flags().StringVar(&peer, "peer", "cohort", "the name in the column peer")
	cmd.Flags().StringVar(&only, "only", "", "run only the cases whose name matches this regular expression")
	cmd.Flags().DurationVar(&dur, "dur", time.Second, "time per case")
	return cmd
}

// rpcWorkerCommand is the callee: of "cohort bench rpc", and of bench/peers/rpc/pair.py, where the caller is PyTorch.
func (a *app) rpcWorkerCommand() *cobra.Command {
	var addr, name, transport string
	var rank, size int
	cmd := &cobra.Command{
		Use:    "rpc-worker",
		Hidden: true,
		Args:   command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := transports(transport)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintln(a.Out, "ready"); err != nil {
				return err
			}
			return a.rpcWorker(cmd.Context(), addr, name, rank, size, opts)
		},
	}
	cmd.Flags().StringVar(&addr, "store", "", "address of the store")
	cmd.Flags().StringVar(&name, "name", "w1", "name of the worker")
	cmd.Flags().StringVar(&transport, "transport", "auto", "auto, cohort or uv")
	cmd.Flags().IntVar(&rank, "rank", 1, "rank of the worker")
	cmd.Flags().IntVar(&size, "world-size", 2, "number of workers")
	return cmd
}

func transports(name string) ([]rpc.Option, error) {
	switch name {
	case "auto":
		return nil, nil
	case rpc.TransportCohort, rpc.TransportUV:
		return []rpc.Option{rpc.WithTransports(name)}, nil
	}
	return nil, command.Usage(fmt.Errorf("--transport %s: auto, cohort or uv", name))
}

// joinWorker joins a static world over a store at addr, which rank 0 hosts.
func joinWorker(ctx context.Context, addr, name string, rank, size int, opts []rpc.Option) (*rpc.Agent, *rendezvous.Member, error) {
	member, err := rendezvous.Join(ctx, fmt.Sprintf("tcp://%s?rank=%d&world_size=%d", addr, rank, size))
	if err != nil {
		return nil, nil, err
	}
	echo := func(x any) any { return x }
	opts = append(opts, rpc.WithRank(cohort.Rank(rank)), rpc.WithWorldSize(size), operators.Serve(), rpc.WithHandlers(
		rpc.NewRegistry().MustHandle(pythonUDF, echo).MustHandle(plainUDF, echo).MustHandle(borrowUDF, echo, rpc.Borrowed())))
	if _, set := os.LookupEnv("TP_SOCKET_IFNAME"); !set {
		opts = append(opts, rpc.WithAddr("127.0.0.1:0"))
	}
	agent, err := rpc.Join(ctx, member.Store(), name, opts...)
	if err != nil {
		_ = member.Close()
		return nil, nil, err
	}
	return agent, member, nil
}

// rpcWorker serves until all workers shut down, or until the parent is gone.
func (a *app) rpcWorker(ctx context.Context, addr, name string, rank, size int, opts []rpc.Option) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	childproc.CancelAtEOF(a.In, cancel)
	agent, member, err := joinWorker(ctx, addr, name, rank, size, opts)
	if err != nil {
		return err
	}
	err = agent.Shutdown(ctx)
	_ = member.Close() // the host waits for its clients
	return err
}

// measureRPC measures; when another process takes the port that was free a moment ago, with another one.
func (a *app) measureRPC(ctx context.Context, m *meter, transport string) error {
	for try := 0; ; try++ {
		if err := a.measureRPCOnce(ctx, m, transport); try == 3 || !errors.Is(err, cohort.AlreadyExists) {
			return err
		}
	}
}

func (a *app) measureRPCOnce(ctx context.Context, m *meter, transport string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	opts, err := transports(transport)
	if err != nil {
		return err
	}
	addr, err := freeLoopback()
	if err != nil {
		return err
	}
	pid, stop, err := startReady(ctx, "bench", "rpc-worker", "--store", addr, "--transport", transport)
	if err != nil {
		return err
	}
	defer stop()
	a.Note(fmt.Sprintf("cohort bench rpc: processes %d and %d, transport %s", os.Getpid(), pid, transport))
	started := time.Now()
	agent, member, err := joinWorker(ctx, addr, "w0", 0, 2, opts)
	if err != nil {
		return err
	}
	defer func() { _ = member.Close() }()
	defer func() { _ = agent.Close() }()
	m.emit("init", float64(time.Since(started).Microseconds())/1e3, "ms")
	if err := rpcCases(ctx, m, agent); err != nil {
		return err
	}
	if err := agent.Shutdown(ctx); err != nil {
		return err
	}
	return member.Shutdown(ctx)
}

func rpcCases(ctx context.Context, m *meter, agent *rpc.Agent) error {
	x, err := tensor.From([]float32{1, 1})
	if err != nil {
		return err
	}
	builtin := func() error {
		_, err := rpc.Call[*tensor.Tensor](ctx, agent, "w1", addOperator, x, x, 1)
		return err
	}
	echo := func(fn string, t *tensor.Tensor, release bool) func() error {
		return func() error {
			y, err := rpc.Call[*tensor.Tensor](ctx, agent, "w1", fn, t)
			if err != nil {
				return err
			}
			if y.Numel() != t.Numel() {
				return fmt.Errorf("the echo has %d elements, want %d", y.Numel(), t.Numel())
			}
			if release {
				y.Storage().Release()
			}
			return nil
		}
	}
	if err := m.run("sync_builtin", 1, 0, builtin); err != nil {
		return err
	}
	if err := m.run("sync_udf", 1, 0, echo(plainUDF, x, false)); err != nil {
		return err
	}
	if err := m.run("async_builtin.w64", 64, 0, builtin); err != nil {
		return err
	}
	if err := m.run("async_udf.w64", 64, 0, echo(plainUDF, x, false)); err != nil {
		return err
	}
	for _, c := range []struct {
		name string
		size int
	}{{"1MiB", 1 << 20}, {"64MiB", 64 << 20}} {
		big, err := tensor.New(tensor.Float32, c.size/4)
		if err != nil {
			return err
		}
		// Both ends say when they are done with a tensor, as reference counts do in PyTorch; then once more where they leave
		// that to the garbage collector.
		if err := m.run("echo_tensor."+c.name, 1, c.size, echo(borrowUDF, big, true)); err != nil {
			return err
		}
		if err := m.run("echo_tensor_gc."+c.name, 1, c.size, echo(plainUDF, big, false)); err != nil {
			return err
		}
	}
	if err := m.run("rref_churn", 1, 0, func() error {
		ref, err := rpc.Remote[*tensor.Tensor](ctx, agent, "w1", addOperator, x, x, 1)
		if err != nil {
			return err
		}
		if _, err := ref.Fetch(ctx); err != nil {
			return err
		}
		return ref.Close()
	}); err != nil {
		return err
	}
	return createDelete(ctx, m, agent, x)
}

// createDelete makes and drops references without waiting for their values, then waits for all that was sent.
func createDelete(ctx context.Context, m *meter, agent *rpc.Agent, x *tensor.Tensor) error {
	const name = "rref_create_delete"
	if !m.wanted(name) {
		return nil
	}
	for _, dur := range []time.Duration{m.dur / 5, m.dur} {
		n, start := 0, time.Now()
		for time.Since(start) < dur {
			ref, err := rpc.Remote[*tensor.Tensor](ctx, agent, "w1", addOperator, x, x, 1)
			if err != nil {
				return err
			}
			if err := ref.Close(); err != nil {
				return err
			}
			n++
		}
		if _, err := rpc.Call[*tensor.Tensor](ctx, agent, "w1", addOperator, x, x, 1); err != nil {
			return err
		}
		if dur == m.dur {
			m.emit(name+".ops", float64(n)/time.Since(start).Seconds(), "op/s")
		}
	}
	return nil
}
