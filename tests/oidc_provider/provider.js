// The certified provider of npm, with people, keys and a client of a test's own: its argument is a document
// {port, client: {id, secret, redirect, logout}, people: [claims], keys: [JWK]}. Who signs in types a subject.
import { Provider } from "oidc-provider";

const { port, client, people, keys } = JSON.parse(process.argv[2]);
const provider = new Provider(`http://localhost:${port}`, {
  clients: [
    {
      client_id: client.id,
      client_secret: client.secret,
      redirect_uris: [client.redirect],
      response_types: ["code"],
      grant_types: ["authorization_code", "urn:ietf:params:oauth:grant-type:device_code"],
      backchannel_logout_uri: client.logout,
      backchannel_logout_session_required: true,
    },
  ],
  claims: {
    openid: ["sub"],
    profile: ["name", "preferred_username"],
    groups: ["groups"],
    email: ["email"],
    auth_time: null,
    sid: null,
  },
  features: { deviceFlow: { enabled: true }, backchannelLogout: { enabled: true } },
  findAccount: (_, id) => {
    const person = people.find((one) => one.sub === id);
    return person && { accountId: id, claims: () => person };
  },
  jwks: { keys },
  // Its own refuses addresses of this machine.
  fetch: (url, { dispatcher, ...options }) => fetch(url, options),
  cookies: { keys: ["a secret of tests"] },
});
provider.listen(port, "127.0.0.1");
