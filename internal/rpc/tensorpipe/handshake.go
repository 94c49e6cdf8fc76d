// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tensorpipe

import (
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
)

// Names and domains of the transports and channels we speak. PyTorch compares the domains for equality.
const (
	transportUV     = "uv"
	domainUV        = "uv:*"
	transportCohort = "cohort"
	domainCohort    = "cohort:3" // with the version: 3 has keys in the control stream and in creating calls
	addressDefer    = "defer"    // the address of a cohort answer that means: use the connection that exists or that we are dialling

	// ChannelBasic sends storages on one connection; ChannelMPT on 16.
	ChannelBasic = "basic"
	ChannelMPT   = "mpt_uv"
	mptLanes     = 16
)

var channelDescriptors = map[string]string{
	ChannelBasic: "any",
	ChannelMPT:   "16" + strings.Repeat(":uv:*", mptLanes),
}

// sessionPlan is the outcome of a handshake: how the pipe goes on.
type sessionPlan struct {
	// Cohort is set when both sides are Go: the dialled connection carries cohort frames from here on, or with Defer the
	// connection that the other side is dialling does.
	Cohort, Defer bool
	// Address is where the dialling side opens the other connections.
	Address string
	// Reply is the registration of the descriptor-reply connection, if HasReply.
	Reply    uint64
	HasReply bool
	// Channel is the channel for tensors, and ChannelID the registration of its connection.
	Channel   string
	ChannelID uint64
}

// offerer is the pure machine of the dialling side. It offers, then reads the answer; it does no I/O.
type offerer struct {
	// Name is this side's worker name.
	Name string
	// Channels are the channels to offer, the preferred first. The other side decides.
	Channels []string
	// Cohort is the offer of the cohort transport, or nil.
	Cohort *cohortAd
}

// cohortAd is what a dialling side sends with its offer of the cohort transport.
type cohortAd struct {
	// Incarnation identifies the start of the worker.
	Incarnation uint64
	// Insist is set when it was told to wait for another connection, has waited and has none.
	Insist bool
}

// The domain of the cohort transport in a brochure is "cohort:3:", the incarnation in hexadecimal, and ":insist" if so.
const insistSuffix = ":insist"

func (o cohortAd) domain() string {
	text := domainCohort + ":" + strconv.FormatUint(o.Incarnation, 16)
	if o.Insist {
		text += insistSuffix
	}
	return text
}

func cohortOffer(transports []transportAd) (offer cohortAd, ok bool) {
	for _, t := range transports {
		if text, found := strings.CutPrefix(t.Domain, domainCohort+":"); found && t.Name == transportCohort {
			text, offer.Insist = strings.CutSuffix(text, insistSuffix)
			n, err := strconv.ParseUint(text, 16, 64)
			offer.Incarnation = n
			return offer, err == nil
		}
	}
	return cohortAd{}, false
}

// Hello returns the two frames that a dialling side writes at once: packet and brochure.
func (o offerer) Hello() (packet, brochure []byte) {
	br := brochureFrame{Transports: []transportAd{{transportUV, domainUV}}}
	if o.Cohort != nil {
		br.Transports = append(br.Transports, transportAd{transportCohort, o.Cohort.domain()})
	}
	for _, c := range o.Channels {
		br.Channels = append(br.Channels, channelAd{c, []deviceDescriptor{{cpu, channelDescriptors[c]}}})
	}
	return packetFrame{Name: o.Name}.Append(nil), br.Append(nil)
}

// Answered decides what the answer means.
func (o offerer) Answered(frame []byte) (sessionPlan, error) {
	a, err := parseAnswer(frame)
	if err != nil {
		return sessionPlan{}, err
	}
	refuse := func(format string, args ...any) (sessionPlan, error) {
		return sessionPlan{}, cohort.Newf("tensorpipe: handshake", cohort.Protocol, format, args...)
	}
	if a.Transport == transportCohort {
		if o.Cohort == nil || a.Domain != domainCohort {
			return refuse("the peer answered with transport %q (%q), which was not offered", a.Transport, a.Domain)
		}
		return sessionPlan{Cohort: true, Defer: a.Address == addressDefer}, nil
	}
	if a.Transport != transportUV || a.Domain != domainUV {
		return refuse("the peer answered with transport %q (%q), which was not offered", a.Transport, a.Domain)
	}
	p := sessionPlan{Address: a.Address}
	for _, reg := range a.Registrations {
		switch reg.Conn {
		case connDescriptorReply:
			p.Reply, p.HasReply = reg.ID, true
		default:
			return refuse("the peer asks for connection %d, but the pipe stays on its transport", reg.Conn)
		}
	}
	for _, s := range a.Selections {
		if s.Server == cpu && s.Client == cpu {
			p.Channel = s.Channel
		}
	}
	if !slices.Contains(o.Channels, p.Channel) {
		return refuse("the peer picked channel %q for CPU tensors, which was not offered", p.Channel)
	}
	for _, c := range a.Channels {
		if c.Name != p.Channel {
			continue
		}
		for _, d := range c.Devices {
			if d.Device == cpu && d.Descriptor != channelDescriptors[p.Channel] {
				return refuse("channel %q with descriptor %q, ours is %q", p.Channel, d.Descriptor, channelDescriptors[p.Channel])
			}
		}
	}
	i := slices.IndexFunc(a.ChannelIDs, func(c channelRegistration) bool { return c.Name == p.Channel })
	if i < 0 || len(a.ChannelIDs[i].IDs) != 1 || len(a.ChannelIDs) != 1 {
		return refuse("the answer does not name exactly one connection for channel %q", p.Channel)
	}
	p.ChannelID = a.ChannelIDs[i].IDs[0]
	return p, nil
}

// chooser is the pure machine of the listening side.
type chooser struct {
	// Channels are the channels we accept, the preferred first.
	Channels []string
	// Cohort accepts the cohort transport when it is offered.
	Cohort bool
	// Defer is called when the cohort transport is picked: true makes the peer use the connection that exists already
	// or that we are dialling. Nil is false.
	Defer func(cohortAd) bool
	// Address is where the peer reaches this listener.
	Address string
	// Register hands out the id of one more connection to expect.
	Register func() uint64
}

// Choose reads a brochure and returns the answer frame and the plan.
func (c chooser) Choose(frame []byte) (answer []byte, p sessionPlan, err error) {
	br, err := parseBrochure(frame)
	if err != nil {
		return nil, sessionPlan{}, err
	}
	offers := func(name, domain string) bool { return slices.Contains(br.Transports, transportAd{name, domain}) }
	if offer, ok := cohortOffer(br.Transports); ok && c.Cohort {
		a := answerFrame{Transport: transportCohort, Domain: domainCohort, Address: c.Address}
		p = sessionPlan{Cohort: true, Defer: c.Defer != nil && c.Defer(offer)}
		if p.Defer {
			a.Address = addressDefer
		}
		return a.Append(nil), p, nil
	}
	if i := slices.IndexFunc(br.Transports, func(t transportAd) bool { return t.Name == transportCohort }); i >= 0 && c.Cohort {
		return nil, sessionPlan{}, cohort.Newf("tensorpipe: handshake", cohort.Mismatch,
			"the peer is a Go worker of another version: its cohort transport is %q, ours is %q: build all workers from one "+
				"version", br.Transports[i].Domain, domainCohort)
	}
	if !offers(transportUV, domainUV) {
		return nil, sessionPlan{}, cohort.New("tensorpipe: handshake", cohort.Mismatch,
			"the peer does not offer the uv transport: start it with transport \"uv\" enabled (the default)")
	}
	for _, name := range c.Channels {
		want := deviceDescriptor{cpu, channelDescriptors[name]}
		i := slices.IndexFunc(br.Channels, func(ad channelAd) bool { return ad.Name == name && slices.Contains(ad.Devices, want) })
		if i < 0 {
			continue
		}
		p = sessionPlan{Address: c.Address, HasReply: true, Reply: c.Register(), Channel: name, ChannelID: c.Register()}
		a := answerFrame{
			Transport: transportUV, Address: c.Address, Domain: domainUV,
			Registrations: []registration{{connDescriptorReply, p.Reply}},
			ChannelIDs:    []channelRegistration{{name, []uint64{p.ChannelID}}},
			Channels:      []channelAd{{name, []deviceDescriptor{want}}},
			Selections:    []selection{{cpu, cpu, name}},
		}
		return a.Append(nil), p, nil
	}
	return nil, sessionPlan{}, cohort.Newf("tensorpipe: handshake", cohort.Mismatch,
		"the peer offers none of the channels %v for CPU tensors", c.Channels)
}
