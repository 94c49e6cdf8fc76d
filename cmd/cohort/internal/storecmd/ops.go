// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecmd

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// maxInput bounds a value that is read from standard input: no PyTorch server takes more.
const maxInput = 8 << 20

// keyValue is the JSON form of a key and its value. Values that are no text come in base64.
type keyValue struct {
	Key    string  `json:"key"`
	Value  *string `json:"value,omitempty"`
	Base64 *string `json:"value_base64,omitempty"`
}

func newKeyValue(key string, value []byte) keyValue {
	kv := keyValue{Key: key}
	if utf8.Valid(value) {
		text := string(value)
		kv.Value = &text
	} else {
		text := base64.StdEncoding.EncodeToString(value)
		kv.Base64 = &text
	}
	return kv
}

// value returns an argument as bytes; "-" stands for standard input.
func (a *app) value(ctx context.Context, arg string) ([]byte, error) {
	if arg != "-" {
		return []byte(arg), nil
	}
	var value []byte
	var err error
	read := make(chan struct{})
	go func() { // ends with standard input or, like every read of it, with the process
		value, err = io.ReadAll(io.LimitReader(a.In, maxInput+1))
		close(read)
	}()
	select {
	case <-read:
	case <-ctx.Done():
		return nil, command.Explain(ctx, ctx.Err())
	}
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	if len(value) > maxInput {
		return nil, cohort.Newf("store: set", cohort.TooLarge, "standard input has more than %d bytes, the limit of a value", maxInput)
	}
	return value, nil
}

func (a *app) getCommand() *cobra.Command {
	var now, bare bool
	cmd := a.storeOp(&cobra.Command{
		Use:   "get KEY",
		Short: "Print the value of a key, waiting until it exists",
		Long: "Print the value of a key, waiting until it exists. On a terminal, what cannot be\nprinted is shown as \\x1b; into a file " +
			"or a pipe the value goes unchanged.",
		Example: strings.Trim(`
  cohort store get epoch
  cohort store get --now epoch || echo "not there yet"
  cohort store get --no-newline blob > blob.bin`, "\n"),
		Args: command.Exactly("KEY"),
	}, func(ctx context.Context, s *tcpstore.Client, args []string) error {
		if now {
			if there, err := s.Check(ctx, args[0]); err != nil {
				return err
			} else if !there {
				return notFound("get", args[0])
			}
		}
		value, err := s.Get(ctx, args[0])
		if err != nil {
			return err
		}
		if a.JSON {
			return a.Print("store.get", newKeyValue(args[0], value), "")
		}
		if tui.IsTerminal(a.Out) { // every client of the store can have set it
			value = []byte(printable.Lines(string(value)))
		}
		if !bare {
			value = append(value, '\n')
		}
		_, err = a.Out.Write(value)
		return err
	})
	cmd.Flags().BoolVar(&now, "now", false, "do not wait: exit with 4 if the key does not exist")
	cmd.Flags().BoolVarP(&bare, "no-newline", "n", false, "print only the value, without a line end")
	return cmd
}

func notFound(op, key string) error {
	return &cohort.Error{Op: "store: " + op, Code: cohort.NotFound, Rank: cohort.NoRank, Key: key}
}

func (a *app) setCommand() *cobra.Command {
	return a.writeCommand(&cobra.Command{
		Use:   "set KEY VALUE",
		Short: "Set a key and wake all that wait for it",
		Example: strings.Trim(`
  cohort store set epoch 3
  cohort store set model - < model.bin      the value comes from standard input`, "\n"),
	}, "store.set", (*tcpstore.Client).Set)
}

func (a *app) appendCommand() *cobra.Command {
	return a.writeCommand(&cobra.Command{
		Use:   "append KEY VALUE",
		Short: "Append to the value of a key, creating it",
		Example: strings.Trim(`
  cohort store append log "step 1 done;"
  date | cohort store append log -          the value comes from standard input`, "\n"),
	}, "store.append", (*tcpstore.Client).Append)
}

// writeCommand completes a command that writes a value. What comes from standard input is read before the store is
// dialled: it may take its time.
func (a *app) writeCommand(
	cmd *cobra.Command, form string, write func(s *tcpstore.Client, ctx context.Context, key string, value []byte) error,
) *cobra.Command {
	var value []byte
	cmd.Args = command.Exactly("KEY", "VALUE")
	a.storeOp(cmd, func(ctx context.Context, s *tcpstore.Client, args []string) error {
		if err := write(s, ctx, args[0], value); err != nil {
			return err
		}
		return a.done(form, map[string]any{"key": args[0], "value_bytes": len(value)})
	})
	talk := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if value, err = a.value(cmd.Context(), args[1]); err != nil {
			return err
		}
		return talk(cmd, args)
	}
	return cmd
}

// done tells of a success that only JSON has words for.
func (a *app) done(form string, result map[string]any) error {
	if a.JSON {
		return a.Print(form, result, "")
	}
	return nil
}

// negative is how the flag parser complains of a number such as -1.
var negative = regexp.MustCompile(`^unknown shorthand flag: '\d'`)

func (a *app) addCommand() *cobra.Command {
	delta := int64(1)
	cmd := a.storeOp(&cobra.Command{
		Use:   "add KEY [DELTA]",
		Short: "Add to a counter and print the sum",
		Long:  "Add DELTA (default 1) to the number under KEY and print the sum. A key that does not exist counts as 0.",
		Example: strings.Trim(`
  cohort store add steps
  cohort store add steps 100
  cohort store add -- steps -1              a negative number needs the two dashes
  cohort store add --raw init/ 0            how many workers have joined`, "\n"),
		Args: func(cmd *cobra.Command, args []string) (err error) {
			if err = command.Between(1, 2, "KEY")(cmd, args); err != nil || len(args) < 2 {
				return err
			}
			if delta, err = strconv.ParseInt(args[1], 10, 64); err != nil {
				return command.Usage(fmt.Errorf("DELTA %q is not a whole number", args[1]))
			}
			return nil
		},
	}, func(ctx context.Context, s *tcpstore.Client, args []string) error {
		sum, err := s.Add(ctx, args[0], delta)
		if err != nil {
			return err
		}
		return a.Print("store.add", map[string]any{"key": args[0], "sum": sum}, strconv.FormatInt(sum, 10))
	})
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if negative.MatchString(err.Error()) {
			return command.Usage(
				errors.New(`a negative DELTA needs two dashes before KEY, so that it is not taken for a flag: cohort store add -- KEY -1`))
		}
		return cmd.Root().FlagErrorFunc()(cmd, err)
	})
	return cmd
}

func (a *app) casCommand() *cobra.Command {
	return a.storeOp(&cobra.Command{
		Use:   "cas KEY EXPECTED DESIRED",
		Short: "Replace a value if it equals the expected one",
		Long: strings.TrimSpace(`
Replace the value of KEY with DESIRED if it equals EXPECTED, and print the value that
the store replies with. An empty EXPECTED ("") creates a key that does not exist.
The exit code is 5 if the value was not EXPECTED. A value that was already DESIRED
counts as replaced, because PyTorch's protocol does not tell the two apart.`),
		Example: strings.Trim(`
  cohort store cas leader "" node3          become the leader if there is none
  cohort store cas leader node3 node4`, "\n"),
		Args: command.Exactly("KEY", "EXPECTED", "DESIRED"),
	}, func(ctx context.Context, s *tcpstore.Client, args []string) error {
		value, err := s.CompareAndSet(ctx, args[0], []byte(args[1]), []byte(args[2]))
		if err != nil {
			return err
		}
		// A missing key with an expectation is answered by that expectation, so ask whether it is there.
		swapped := bytes.Equal(value, []byte(args[2]))
		if swapped && args[1] == args[2] {
			if swapped, err = s.Check(ctx, args[0]); err != nil {
				return err
			}
		}
		result := struct {
			keyValue

			Swapped bool `json:"swapped"`
		}{newKeyValue(args[0], value), swapped}
		if err := a.Print("store.cas", result, string(value)); err != nil || swapped {
			return err
		}
		return command.Exit(command.ExitUnchanged)
	})
}

func (a *app) waitCommand() *cobra.Command {
	return a.storeOp(&cobra.Command{
		Use:   "wait KEY...",
		Short: "Wait until all keys exist",
		Example: strings.Trim(`
  cohort store wait ready/0 ready/1 --timeout 5m && echo "both are ready"`, "\n"),
		Args: command.Between(1, -1, "KEY"),
	}, func(ctx context.Context, s *tcpstore.Client, args []string) error {
		if err := s.Wait(ctx, args...); err != nil {
			return nameMissing(ctx, s, args, err)
		}
		return a.done("store.wait", map[string]any{"keys": args})
	})
}

// nameMissing adds to the error of a wait that took too long which of several keys are missing.
func nameMissing(ctx context.Context, s *tcpstore.Client, keys []string, err error) error {
	if len(keys) < 2 || !errors.Is(err, cohort.DeadlineExceeded) {
		return err
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	var missing []string
	for _, key := range keys {
		there, check := s.Check(last, key)
		if check != nil {
			return err
		}
		if !there {
			missing = append(missing, key)
		}
	}
	return fmt.Errorf("%w; missing: %s", err, strings.Join(missing, ", "))
}

func (a *app) deleteCommand() *cobra.Command {
	return a.storeOp(&cobra.Command{
		Use:     "delete KEY...",
		Short:   "Delete keys",
		Long:    "Delete keys. The exit code is 4 if one of them did not exist; the others are still deleted.",
		Example: "  cohort store delete epoch steps",
		Args:    command.Between(1, -1, "KEY"),
	}, func(ctx context.Context, s *tcpstore.Client, args []string) error {
		var missing []string
		for _, key := range args {
			had, err := s.Delete(ctx, key)
			if err != nil {
				return err
			}
			if !had {
				missing = append(missing, key)
			}
			if a.JSON {
				if err := a.Print("store.delete", map[string]any{"key": key, "deleted": had}, ""); err != nil {
					return err
				}
			}
		}
		if len(missing) > 0 {
			return notFound("delete", strings.Join(missing, ", "))
		}
		return nil
	})
}

func (a *app) keysCommand() *cobra.Command {
	var count, values bool
	cmd := a.storeOp(&cobra.Command{
		Use:   "keys [PREFIX]",
		Short: "List the keys of a store",
		Long: strings.TrimSpace(`
List the keys, sorted, one per line; with PREFIX, only those that start with it.
PyTorch's servers up to 2.9 cannot list keys. --count works with all of them and
includes the store's own keys, as PyTorch's num_keys does.`),
		Example: strings.Trim(`
  cohort store keys
  cohort store keys default_pg/ --values
  cohort store keys --count`, "\n"),
		Args: func(cmd *cobra.Command, args []string) error {
			if count && len(args) > 0 {
				return command.Usage(errors.New("--count counts the whole store and takes no PREFIX"))
			}
			return command.Between(0, 1)(cmd, args)
		},
	}, func(ctx context.Context, s *tcpstore.Client, args []string) error {
		if count {
			n, err := s.NumKeys(ctx)
			if err != nil {
				return err
			}
			return a.Print("store.keys", map[string]any{"count": n}, strconv.Itoa(n))
		}
		keys, err := s.ListKeys(ctx)
		if err != nil {
			return err
		}
		if len(args) == 1 {
			keys = slices.DeleteFunc(keys, func(key string) bool { return !strings.HasPrefix(key, args[0]) })
		}
		slices.Sort(keys)
		return a.printKeys(ctx, s, keys, values)
	})
	cmd.Flags().BoolVar(&count, "count", false, "print only the number of keys")
	cmd.Flags().BoolVar(&values, "values", false, "print the start of each value too")
	return cmd
}

// printKeys lists keys, and with values what they hold now.
func (a *app) printKeys(ctx context.Context, s *tcpstore.Client, keys []string, values bool) error {
	for _, key := range keys {
		text := printable.Line(key)
		result := keyValue{Key: key}
		if values {
			// A key may go while we look; then it is simply no longer listed.
			there, err := s.Check(ctx, key)
			if err != nil {
				return err
			}
			if !there {
				continue
			}
			value, err := s.Get(ctx, key)
			if err != nil {
				return err
			}
			result = newKeyValue(key, value)
			text += "\t" + tui.Cut(printable.Line(string(value)), 200)
		}
		if err := a.Print("store.keys", result, text); err != nil {
			return err
		}
	}
	return nil
}
