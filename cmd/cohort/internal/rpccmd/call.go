// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpccmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

func (a *app) rpcCallCommand() *cobra.Command {
	var flags rpcFlags
	var keywords []string
	var listen string
	cmd := &cobra.Command{
		Use:   "call WORKER FUNCTION [ARG...]",
		Short: "Call a function of a worker and print its result",
		Long: strings.TrimSpace(`
Call a function of a worker by its qualified name: module.function, or
package.module:Class.method. A Go worker runs the handler of that name, a PyTorch
worker imports the module and runs the function.

Arguments are JSON: 3, 1.5, "text", [1, 2], {"a": 1}, true, null. --kw NAME=JSON is a
keyword argument. The result is printed as JSON too; tensors as their type, shape and
elements.

The command calls workers as a guest, that is, without joining the world. To call a
PyTorch worker of a dynamic world it joins, calls and leaves.`),
		Example: strings.Trim(`
  cohort rpc call ps stats.mean '[1, 2, 3]'
  cohort rpc call trainer1 train.checkpoint '"/data/ckpt"' --kw epoch=7 --timeout 5m
  cohort rpc call ps cohort.rpc.handlers           the functions of a Go worker`, "\n"),
		Args: command.Between(2, -1, "WORKER", "FUNCTION"),
		RunE: func(cmd *cobra.Command, args []string) error {
			values, err := parseArguments(args[2:], keywords)
			if err != nil {
				return err
			}
			return flags.WithStore(cmd.Context(), a.App, func(ctx context.Context, s *tcpstore.Client) error {
				agent, err := flags.visit(ctx, s, args[0], listen)
				if err != nil {
					return err
				}
				result, err := rpc.Call[any](ctx, agent, args[0], args[1], values...)
				if leaving := agent.Shutdown(ctx); err == nil {
					err = leaving
				}
				if err != nil {
					return err
				}
				shown := showValue(result)
				if a.JSON {
					return a.Print("rpc.call", map[string]any{"worker": args[0], "function": args[1], "result": shown}, "")
				}
				text, err := json.Marshal(shown)
				if err != nil {
					return err
				}
				return a.PrintText(string(printable.Document(text)))
			})
		},
	}
	flags.Bind(a.App, cmd)
	cmd.Flags().StringArrayVar(&keywords, "kw", nil, "a keyword argument, NAME=JSON; may be repeated")
	cmd.Flags().StringVar(&listen, "listen", "",
		"address to listen on, HOST:PORT, when it joins a dynamic world (default: as PyTorch chooses)")
	return cmd
}

// parseArguments reads the arguments of a call.
func parseArguments(args, keywords []string) ([]any, error) {
	values := make([]any, 0, len(args)+1)
	for _, arg := range args {
		v, err := parseValue("ARG", arg)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	kw := rpc.Kw{}
	for _, pair := range keywords {
		name, text, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, command.Usage(fmt.Errorf("--kw %s: write NAME=JSON", pair))
		}
		v, err := parseValue("--kw "+name, text)
		if err != nil {
			return nil, err
		}
		kw[name] = v
	}
	if len(kw) > 0 {
		values = append(values, kw)
	}
	return values, nil
}

// parseValue reads JSON; numbers without a fraction are integers, as in Python.
func parseValue(what, text string) (any, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	if err == nil && d.More() {
		err = errors.New("more than one value")
	}
	if err != nil {
		hint := ""
		if !strings.ContainsAny(text, `"[]{}`) {
			hint = fmt.Sprintf(`; a text needs quotes: '"%s"'`, text)
		}
		return nil, command.Usage(fmt.Errorf("%s %q is not JSON: %w%s", what, text, err, hint))
	}
	return numbers(v)
}

func numbers(v any) (any, error) {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n, nil
		}
		f, err := v.Float64()
		if err != nil {
			return nil, command.Usage(fmt.Errorf("the number %s is too large", v))
		}
		return f, nil
	case []any:
		for i := range v {
			var err error
			if v[i], err = numbers(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for key := range v {
			var err error
			if v[key], err = numbers(v[key]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// visit returns who can call a worker: a guest, or a passing member of a dynamic world for a PyTorch worker there.
func (f *rpcFlags) visit(ctx context.Context, s *tcpstore.Client, worker, listen string) (rpc.Caller, error) {
	world, err := readRPCWorld(ctx, s, f.round)
	if err != nil {
		return nil, err
	}
	m, err := world.worker("rpc: call", worker)
	if err != nil {
		return nil, err
	}
	if m.Go || world.Static { // a PyTorch worker answers any client, too
		return f.guest(ctx, s, world)
	}
	opts := f.options(world)
	if listen != "" {
		opts = append(opts, rpc.WithAddr(listen))
	}
	return rpc.Join(ctx, s, visitorName(), opts...)
}

// visitorName is what this process is called. PyTorch splits a worker's entry at its first "-", so the name has none.
func visitorName() string { return "cohort_cli_" + strconv.Itoa(os.Getpid()) }

func (f *rpcFlags) options(world *rpcWorld) []rpc.Option {
	return []rpc.Option{rpc.WithRound(world.Round), rpc.WithTimeout(f.Timeout)}
}

// guest returns who calls workers without being a member.
func (f *rpcFlags) guest(ctx context.Context, s store.Store, world *rpcWorld) (*rpc.Client, error) {
	return rpc.NewClient(ctx, s, visitorName(), append(f.options(world), rpc.WithAddr("127.0.0.1:0"))...)
}

func (w *rpcWorld) names() string {
	if len(w.Workers) == 0 {
		return "none"
	}
	names := make([]string, len(w.Workers))
	for i, m := range w.Workers {
		names[i] = m.Name
	}
	return strings.Join(names, ", ")
}
