// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

func (a *app) topCommand() *cobra.Command {
	var flags command.StoreFlags
	var once bool
	var every time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show live who waits for which key, and since when",
		Long: strings.TrimSpace(`
Show connections, keys, operations per second, and who waits for which key and since
when: the first thing to look at when a job hangs at its start. On a terminal the view
is live ("q" quits); otherwise one frame is printed after another. Only cohort's own
store provides this information; PyTorch's does not.

Go processes are shown with their rank. A PyTorch process is shown by its address and,
if it runs on this machine, by its process id, command and the RANK it was started with.`),
		Example: strings.Trim(`
  cohort store top --addr node0:29500
  cohort store top --once
  cohort store top --json --every 10s >> store.log`, "\n"),
		Args: command.Exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond {
				return command.Usage(fmt.Errorf("--every %s: at least 100ms", every))
			}
			return a.top(cmd.Context(), flags, once, every)
		},
	}
	flags.Bind(a.App, cmd)
	cmd.Flags().BoolVar(&once, "once", false, "print one frame and exit")
	cmd.Flags().DurationVar(&every, "every", time.Second, "time between frames")
	return cmd
}

// sampler asks a store for its numbers and keeps the last ones, because a rate needs two.
type sampler struct {
	client  *tcpstore.Client
	timeout time.Duration
	raw     bool
	names   namer
	last    tcpstore.Stats
	seen    bool
}

// next asks once. The first time it asks twice, a moment apart.
func (s *sampler) next(ctx context.Context) (tui.Top, error) {
	if !s.seen {
		stats, err := s.ask(ctx)
		if err != nil {
			return tui.Top{}, err
		}
		s.last, s.seen = stats, true
		moment := time.NewTimer(200 * time.Millisecond)
		defer moment.Stop()
		select {
		case <-moment.C:
		case <-ctx.Done():
			return tui.Top{}, context.Cause(ctx)
		}
	}
	stats, err := s.ask(ctx)
	if err != nil {
		return tui.Top{}, err
	}
	top := topOf(s.last, stats, s.raw)
	s.names.name(top.Waits)
	s.last = stats
	return top, nil
}

func (s *sampler) ask(ctx context.Context) (stats tcpstore.Stats, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	stats, err = s.client.Stats(ctx)
	if errors.Is(err, cohort.NotSupported) {
		return stats, fmt.Errorf("the store at %s is PyTorch's own and does not report who waits; only cohort's does "+
			"(\"cohort store serve\" explains how PyTorch ranks use it). \"cohort store keys\" and \"get\" work here too", s.client.Addr())
	}
	return stats, err
}

// topOf makes a frame's numbers of two samples.
func topOf(before, now tcpstore.Stats, raw bool) tui.Top {
	elapsed := now.Time.Sub(before.Time).Seconds()
	rate := func(a, b uint64) float64 {
		if elapsed <= 0 || b < a {
			return 0
		}
		return float64(b-a) / elapsed
	}
	top := tui.Top{
		Addr: now.Addr, Uptime: now.Time.Sub(now.Started), Conns: now.Connections, Keys: int64(now.Keys),
		Queues: int64(now.Queues), Bytes: now.Bytes, Ops: OpsOf(now), Rate: rate(before.Requests(), now.Requests()),
		ByOp: map[string]int64{}, ByOpRate: map[string]float64{}, Waiting: now.Waiting, Waits: WaitsOf(now, raw),
		Workers: now.Workers, Left: int64(now.LeftBehind),
	}
	if now.Data != nil {
		top.Data, top.DataBad = dataLine(now.Data), now.Data.Full || now.Data.Error != ""
	}
	if now.LeftBehind > 0 {
		top.LeftFor = now.Time.Sub(now.LeftAt)
	}
	top.Here, top.Gone = ranksOf(now.Claims)
	for op, n := range now.Ops {
		top.ByOp[op] = int64(n) //nolint:gosec // counters stay far below 2^63
		top.ByOpRate[op] = rate(before.Ops[op], n)
	}
	return top
}

// ranksOf sorts the ranks that told who they are. Of several attempts only the latest counts.
func ranksOf(claims map[string]tcpstore.Claim) (here, gone []int) {
	latest := -1
	byAttempt := map[int]map[int]bool{}
	for name, claim := range claims {
		attempt := 0
		if rest, found := strings.CutPrefix(name, "attempt/"); found {
			number, after, _ := strings.Cut(rest, "/")
			n, err := strconv.Atoi(number)
			if err != nil {
				continue
			}
			attempt, name = n, after
		}
		number, found := strings.CutPrefix(name, "rank/")
		rank, err := strconv.Atoi(number)
		if !found || err != nil {
			continue
		}
		if byAttempt[attempt] == nil {
			byAttempt[attempt] = map[int]bool{}
		}
		byAttempt[attempt][rank] = claim.Held
		latest = max(latest, attempt)
	}
	for rank, held := range byAttempt[latest] {
		if held {
			here = append(here, rank)
		} else {
			gone = append(gone, rank)
		}
	}
	slices.Sort(here)
	slices.Sort(gone)
	return here, gone
}

// OpsOf counts the requests that a store has served.
func OpsOf(s tcpstore.Stats) int64 { return int64(s.Requests()) } //nolint:gosec // counters stay far below 2^63

// WaitsOf gathers the rows of one client's wait, one for each key, into one.
func WaitsOf(s tcpstore.Stats, raw bool) []tui.Wait {
	type id struct {
		waiter string
		since  int64
	}
	at := map[id]int{}
	waits := []tui.Wait{}
	for _, w := range s.Waits {
		key := w.Key
		if !raw {
			key = strings.TrimPrefix(key, "/")
		}
		if w.Barrier {
			key += " (barrier)"
		}
		row := id{w.Waiter, w.Since.UnixNano()}
		i, found := at[row]
		if !found {
			i = len(waits)
			at[row] = i
			waits = append(waits, tui.Wait{Client: w.Waiter, Name: clientName(w.Name), Since: s.Time.Sub(w.Since)})
		}
		waits[i].Keys = append(waits[i].Keys, key)
	}
	return waits
}

// clientName makes the words of a claim, "attempt/1/rank/2: nodea pid 7 #4.2, joined", those of a person: "rank 2, nodea
// pid 7".
func clientName(claim string) string {
	name, who, found := strings.Cut(claim, ": ")
	if !found {
		return claim
	}
	if at := strings.LastIndex(name, "rank/"); at >= 0 {
		name = "rank " + name[at+len("rank/"):]
	}
	who, _, _ = strings.Cut(strings.TrimSuffix(who, ", joined"), " #")
	return name + ", " + who
}

func (a *app) top(ctx context.Context, flags command.StoreFlags, once bool, every time.Duration) error {
	dialing, cancel := context.WithTimeout(ctx, flags.Timeout)
	client, err := a.DialStore(dialing, flags.Addr, tcpstore.WithTimeout(flags.Timeout))
	cancel()
	if err != nil {
		return command.Explain(ctx, err)
	}
	defer func() { _ = client.Close() }()
	_, port, _ := net.SplitHostPort(client.Addr())
	server, _ := strconv.Atoi(port)
	find := func(addrs []netip.AddrPort) map[netip.AddrPort]portowner.Owner {
		return portowner.Clients(server, addrs)
	}
	s := &sampler{client: client, timeout: flags.Timeout, raw: flags.Raw, names: namer{find: find}}
	style := tui.StyleFor(a.Out, a.Getenv)
	if !once && !a.JSON && tui.IsTerminal(a.Out) && a.Getenv("TERM") != "dumb" {
		return command.Explain(ctx, a.liveTop(ctx, s, every, style))
	}
	err = a.plainTop(ctx, s, every, once, style)
	if by := (command.SignalError{}); errors.As(context.Cause(ctx), &by) {
		return nil // the usual way to end it
	}
	return err
}

// plainTop prints frame after frame.
func (a *app) plainTop(ctx context.Context, s *sampler, every time.Duration, once bool, style tui.Style) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		top, err := s.next(ctx)
		if err != nil {
			return err
		}
		if a.JSON {
			err = command.WriteJSON(a.Out, "store.top", topDocumentOf(top, dataOf(s.last)))
		} else {
			_, err = fmt.Fprint(a.Out, top.Frame(tui.Width(a.Out), 0, style))
		}
		if err != nil || once {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if !a.JSON {
			if _, err := fmt.Fprintln(a.Out); err != nil {
				return err
			}
		}
	}
}

// liveTop redraws one screen until a key or a signal ends it.
func (a *app) liveTop(ctx context.Context, s *sampler, every time.Duration, style tui.Style) error {
	model := &topModel{
		ctx: ctx, sampler: s, every: every, style: style, width: tui.Width(a.Out), height: 24,
		top: tui.Top{Addr: s.client.Addr(), Pending: true},
	}
	opts := []tea.ProgramOption{tea.WithOutput(a.Out), tea.WithoutSignalHandler()}
	if in, ok := a.In.(*os.File); ok && term.IsTerminal(int(in.Fd())) {
		opts = append(opts, tea.WithInput(in))
	} else {
		opts = append(opts, tea.WithInput(nil))
	}
	program := tea.NewProgram(model, opts...)
	// A program that is given ctx is killed by its end and closes the terminal while it is being read; Quit waits for that.
	defer context.AfterFunc(ctx, program.Quit)()
	_, err := program.Run()
	if by := (command.SignalError{}); errors.As(context.Cause(ctx), &by) {
		return nil // the usual way to end it
	}
	return err
}

// topModel is the live view's state.
type topModel struct {
	ctx     context.Context //nolint:containedctx // bubbletea's commands take no context
	sampler *sampler
	every   time.Duration
	style   tui.Style
	width   int
	height  int
	top     tui.Top
}

type (
	sampleMsg struct {
		top tui.Top
		err error
	}
	tickMsg struct{}
)

// Init implements tea.Model.
func (m *topModel) Init() tea.Cmd { return m.sample }

func (m *topModel) sample() tea.Msg {
	top, err := m.sampler.next(m.ctx)
	return sampleMsg{top, err}
}

// Update implements tea.Model.
func (m *topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "esc", "ctrl+c":
			return m, tea.Quit
		}
	case sampleMsg:
		if msg.err != nil {
			m.top.Err = msg.err.Error() // the last numbers stay; the store may come back
		} else {
			m.top = msg.top
		}
		return m, tea.Tick(m.every, func(time.Time) tea.Msg { return tickMsg{} })
	case tickMsg:
		return m, m.sample
	}
	return m, nil
}

// View implements tea.Model.
func (m *topModel) View() tea.View {
	view := tea.NewView(m.top.Frame(m.width, max(m.height-1, 5), m.style) + m.style.Dim("q ends"))
	view.AltScreen = true
	return view
}

// maxCommand is how much of a command the view has room for, beside rank, process id and address.
const maxCommand = 24

// namer gives names to clients that did not tell one: PyTorch's, where they run on this machine and we may look at them.
type namer struct {
	find  func([]netip.AddrPort) map[netip.AddrPort]portowner.Owner
	known map[string]string // by address, for those that wait; empty: cannot be found out
}

// name fills in the names of waits. Each client is looked for once.
func (n *namer) name(waits []tui.Wait) {
	known := make(map[string]string, len(waits))
	var unknown []netip.AddrPort
	for _, w := range waits {
		if w.Name != "" {
			continue
		}
		name, asked := n.known[w.Client]
		known[w.Client] = name
		if addr, err := netip.ParseAddrPort(w.Client); err == nil && !asked {
			unknown = append(unknown, addr)
		}
	}
	n.known = known
	if len(unknown) > 0 {
		for addr, owner := range n.find(unknown) {
			known[addr.String()] = processName(owner)
		}
	}
	for i, w := range waits {
		if w.Name == "" {
			waits[i].Name = known[w.Client]
		}
	}
}

func processName(owner portowner.Owner) string {
	name := "pid " + strconv.Itoa(owner.PID)
	if owner.Rank != "" {
		name = "rank " + owner.Rank + ", " + name
	}
	if owner.Command != "" {
		program, arguments, _ := strings.Cut(owner.Command, " ")
		name += " " + tui.Cut(strings.TrimSpace(path.Base(program)+" "+arguments), maxCommand)
	}
	return name
}
