// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/tensorpipe/tpcapture"
)

func captured(tb testing.TB) []tpcapture.Frame {
	tb.Helper()
	var all []tpcapture.Frame
	for _, name := range []string{"rpc-session.txt", "default-brochure.txt"} {
		frames, err := tpcapture.Load("testdata/" + name)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, frames...)
	}
	return all
}

// recode parses a frame of the given kind and writes it again.
func recode(note string, data []byte) ([]byte, error) {
	switch {
	case strings.HasPrefix(note, "Packet"):
		p, err := parsePacket(data)
		return p.Append(nil), err
	case strings.HasPrefix(note, "BrochureAnswer"):
		a, err := parseAnswer(data)
		return a.Append(nil), err
	case strings.HasPrefix(note, "Brochure"):
		b, err := parseBrochure(data)
		return b.Append(nil), err
	case strings.HasPrefix(note, "Descriptor"):
		d, err := parseDescriptor(data)
		return d.Append(nil), err
	}
	return data, nil
}

// TestCapturedFrames reads every handshake and descriptor frame of real PyTorch sessions and writes the same bytes.
func TestCapturedFrames(t *testing.T) {
	count := map[string]int{}
	for _, f := range captured(t) {
		got, err := recode(f.Note, f.Data)
		if err != nil || !bytes.Equal(got, f.Data) {
			t.Fatalf("%s: %s: %v\n got %x\nwant %x", f.Block, f.Note, err, got, f.Data)
		}
		kind, _, _ := strings.Cut(f.Note, " ")
		count[strings.TrimSuffix(kind, ",")]++
	}
	for _, kind := range []string{"Packet", "Brochure", "BrochureAnswer", "Descriptor"} {
		if count[kind] < 8 {
			t.Errorf("only %d frames of kind %s", count[kind], kind)
		}
	}
}

func first(t *testing.T, file, note string) []byte {
	t.Helper()
	frames, err := tpcapture.Load("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range frames {
		if strings.HasPrefix(f.Note, note) {
			return f.Data
		}
	}
	t.Fatalf("no %s in %s", note, file)
	return nil
}

// TestHelloIsPyTorchs compares our dialling side with the bytes of a uv+basic PyTorch worker.
func TestHelloIsPyTorchs(t *testing.T) {
	packet, brochure := offerer{Name: "w1", Channels: []string{ChannelBasic}}.Hello()
	if want := first(t, "rpc-session.txt", "Packet, spontaneous"); !bytes.Equal(packet, want) {
		t.Errorf("packet %x, want %x", packet, want)
	}
	if want := first(t, "rpc-session.txt", "Brochure "); !bytes.Equal(brochure, want) {
		t.Errorf("brochure %x, want %x", brochure, want)
	}
}

// TestAnswerIsPyTorchs compares our listening side's answer with PyTorch's to the same brochure.
func TestAnswerIsPyTorchs(t *testing.T) {
	ids := uint64(0)
	choice := chooser{Channels: []string{ChannelBasic}, Address: "127.0.0.1:46393", Register: func() uint64 { ids++; return ids - 1 }}
	answer, plan, err := choice.Choose(first(t, "rpc-session.txt", "Brochure "))
	if err != nil {
		t.Fatal(err)
	}
	if want := first(t, "rpc-session.txt", "BrochureAnswer"); !bytes.Equal(answer, want) {
		t.Errorf("answer %x, want %x", answer, want)
	}
	// What the dialling side reads out of it is the same plan.
	got, err := offerer{Name: "w1", Channels: []string{ChannelBasic}}.Answered(answer)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plan, got); diff != "" {
		t.Error(diff)
	}
}

func TestDefaultPyTorchIsAnsweredWithUV(t *testing.T) {
	brochure := first(t, "default-brochure.txt", "Brochure ")
	for _, channel := range []string{ChannelBasic, ChannelMPT} {
		answer, plan, err := chooser{
			Channels: []string{channel}, Cohort: true, Address: "a:1",
			Register: func() uint64 { return 300 },
		}.Choose(brochure)
		if err != nil || plan.Channel != channel || plan.Cohort {
			t.Fatalf("%s: %+v, %v", channel, plan, err)
		}
		if a, err := parseAnswer(answer); err != nil || a.Transport != "uv" || a.Selections[0].Channel != channel {
			t.Fatalf("%+v, %v", a, err)
		}
	}
}

// TestHandshakeRefuses lists what neither side lets pass.
func TestHandshakeRefuses(t *testing.T) {
	register := func() uint64 { return 1 }
	uv := []transportAd{{"uv", "uv:*"}}
	basic := []channelAd{{"basic", []deviceDescriptor{{cpu, "any"}}}}
	for name, br := range map[string]brochureFrame{
		"no common transport": {Transports: []transportAd{{"shm", "shm:x"}}, Channels: basic},
		"another domain":      {Transports: []transportAd{{"uv", "uv:other"}}, Channels: basic},
		"no common channel":   {Transports: uv, Channels: []channelAd{{"cma", []deviceDescriptor{{cpu, "x"}}}}},
		"other descriptor":    {Transports: uv, Channels: []channelAd{{"basic", []deviceDescriptor{{cpu, "some"}}}}},
		"only a GPU":          {Transports: uv, Channels: []channelAd{{"basic", []deviceDescriptor{{device{"cuda", 0}, "any"}}}}},
		"nothing":             {},
	} {
		if _, _, err := (chooser{Channels: []string{ChannelBasic, ChannelMPT}, Register: register}).Choose(
			br.Append(nil)); !errors.Is(err, cohort.Mismatch) {
			t.Errorf("%s: %v, want a mismatch", name, err)
		}
	}
	for _, domain := range []string{"cohort:2:7", "cohort:4:7", "cohort:3:", "else"} {
		older := brochureFrame{Transports: append(uv, transportAd{"cohort", domain}), Channels: basic}
		_, _, err := (chooser{Channels: []string{ChannelBasic}, Cohort: true, Register: register}).Choose(older.Append(nil))
		if !errors.Is(err, cohort.Mismatch) || !strings.Contains(err.Error(), strconv.Quote(domain)) {
			t.Errorf("a Go worker with the domain %q: %v, want a mismatch that says so", domain, err)
		}
	}
	good := answerFrame{
		Transport: "uv", Address: "a:1", Domain: "uv:*", Registrations: []registration{{connDescriptorReply, 1}},
		ChannelIDs: []channelRegistration{{"basic", []uint64{2}}}, Channels: basic, Selections: []selection{{cpu, cpu, "basic"}},
	}
	offer := offerer{Name: "x", Channels: []string{ChannelBasic}}
	if _, err := offer.Answered(good.Append(nil)); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(a *answerFrame){
		"cohort not offered":  func(a *answerFrame) { a.Transport, a.Domain = "cohort", "cohort:1" },
		"shm":                 func(a *answerFrame) { a.Transport = "shm" },
		"another domain":      func(a *answerFrame) { a.Domain = "uv:x" },
		"switch of transport": func(a *answerFrame) { a.Registrations = append(a.Registrations, registration{connDescriptor, 9}) },
		"channel not offered": func(a *answerFrame) { a.Selections[0].Channel = "mpt_uv" },
		"no selection":        func(a *answerFrame) { a.Selections = nil },
		"no registration":     func(a *answerFrame) { a.ChannelIDs = nil },
		"two registrations":   func(a *answerFrame) { a.ChannelIDs[0].IDs = []uint64{1, 2} },
		"other descriptor":    func(a *answerFrame) { a.Channels = []channelAd{{"basic", []deviceDescriptor{{cpu, "odd"}}}} },
	} {
		a := good
		a.Selections = append([]selection{}, good.Selections...)
		a.ChannelIDs = append([]channelRegistration{}, good.ChannelIDs...)
		change(&a)
		if _, err := offer.Answered(a.Append(nil)); !errors.Is(err, cohort.Protocol) {
			t.Errorf("%s: %v, want a protocol error", name, err)
		}
	}
}

// FuzzFrames feeds bytes to every decoder of the handshake; what one accepts must survive being written and read again.
func FuzzFrames(f *testing.F) {
	for _, frame := range captured(f) {
		if len(frame.Data) < 512 {
			f.Add(frame.Data)
		}
	}
	f.Add(appendLanes(nil, []laneAddress{{"127.0.0.1:1", 2}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if p, err := parsePacket(data); err == nil {
			if q, err := parsePacket(p.Append(nil)); err != nil || q != p {
				t.Fatalf("%+v became %+v, %v", p, q, err)
			}
		}
		if b, err := parseBrochure(data); err == nil {
			if c, err := parseBrochure(b.Append(nil)); err != nil || !cmp.Equal(b, c) {
				t.Fatalf("%+v became %+v, %v", b, c, err)
			}
			_, _, _ = chooser{Channels: []string{ChannelBasic}, Cohort: true, Register: func() uint64 { return 1 }}.Choose(data)
		}
		if a, err := parseAnswer(data); err == nil {
			if b, err := parseAnswer(a.Append(nil)); err != nil || !cmp.Equal(a, b) {
				t.Fatalf("%+v became %+v, %v", a, b, err)
			}
			_, _ = offerer{Channels: []string{ChannelBasic}, Cohort: &cohortAd{}}.Answered(data)
		}
		if d, err := parseDescriptor(data); err == nil {
			if e, err := parseDescriptor(d.Append(nil)); err != nil || !cmp.Equal(d, e) {
				t.Fatalf("%+v became %+v, %v", d, e, err)
			}
			_ = d.check(peerLimits{}.withDefaults())
		}
		if l, err := parseLanes(data); err == nil {
			if m, err := parseLanes(appendLanes(nil, l)); err != nil || !cmp.Equal(l, m) {
				t.Fatalf("%+v became %+v, %v", l, m, err)
			}
		}
	})
}
