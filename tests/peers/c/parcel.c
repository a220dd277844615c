/* A node of the parcel document, from that document alone:
 *   parcel join HOST PORT
 * It listens, introduces itself, asks for the sequence number, and waits for a heartbeat, which it answers. It prints
 * the modes it was told, the number, and "heartbeat".
 */
#include "peer.h"

enum { NODE = 4343, TEXT = 3, MAP = 5 };

/* CBOR, as much as parcels need. */
static uint8_t out[256];
static int size;

static void head(int major, unsigned value) {
    if (value < 24) {
        out[size++] = (uint8_t)(major << 5 | (int)value);
        return;
    }
    int bytes = value < 256 ? 1 : 2;
    out[size++] = (uint8_t)(major << 5 | (bytes == 1 ? 24 : 25));
    put(out + size, value, bytes);
    size += bytes;
}

static void text(const char *value) {
    head(TEXT, (unsigned)strlen(value));
    memcpy(out + size, value, strlen(value));
    size += (int)strlen(value);
}

static void field(const char *name, const char *value) {
    text(name);
    text(value);
}

/* The four fields before a body; the original sends 0 for its size. */
static void begin(const char *type, int is_response) {
    size = 1;
    head(MAP, 5);
    text("is_response");
    out[size++] = is_response ? 0xf5 : 0xf4;
    field("parcel_type", type);
    text("id");
    head(0, NODE);
    text("size");
    head(0, 0);
    text("body");
}

static void post(int sock) {
    out[0] = (uint8_t)(size - 1);
    send_all(sock, out, (size_t)size);
}

static void introduce(int sock, const char *host) {
    begin("DscReq", 0);
    head(MAP, 1);
    text("DscReq");
    head(MAP, 1);
    text("identity");
    head(MAP, 4);
    text("id");
    head(0, NODE);
    field("mode", "DSC");
    field("name", "Cyril");
    field("host", host);
    post(sock);
}

static uint8_t in[256];

static int next_parcel(int sock) {
    uint8_t length;
    if (!take(sock, &length, 1) || !take(sock, in, length)) return 0;
    return length;
}

/* What stands after a key of the parcel that came: the head's value, with its bytes in *at. */
static uint64_t value_of(const char *key, int length, const uint8_t **at) {
    uint8_t *found = memmem(in, (size_t)length, key, strlen(key));
    if (!found) die(key);
    found += strlen(key);
    int low = *found & 0x1f, bytes = low < 24 ? 0 : 1 << (low - 24);
    *at = found + 1 + bytes;
    return bytes ? get(found + 1, bytes) : (uint64_t)low;
}

int main(int count, char **words) {
    if (count != 4) return 2;
    struct sockaddr_in here;
    socklen_t known = sizeof here;
    const uint8_t *at;
    char host[64];
    int listener = bound(SOCK_STREAM), sock = dial(words[2], words[3], SOCK_STREAM);
    getsockname(listener, (struct sockaddr *)&here, &known);
    sprintf(host, "127.0.0.1:%d", ntohs(here.sin_port));
    introduce(sock, host);
    int length = next_parcel(sock);
    value_of("mode", length, &at);
    printf("%.3s\n", (const char *)at);
    /* The document's own words: "Ivan can send a SeqRes". */
    begin("SeqRes", 0);
    text("Empty");
    post(sock);
    length = next_parcel(sock);
    printf("%llu\n", (unsigned long long)value_of("seq_number", length, &at));
    fflush(stdout);
    for (;;) {
        int incoming = accept(listener, NULL, NULL);
        while (next_parcel(incoming) > 0) {
            begin("DscRes", 1);
            head(MAP, 1);
            text("DscRes");
            head(MAP, 1);
            text("neighbours");
            out[size++] = 0x80; /* an empty array */
            post(incoming);
            say("heartbeat");
        }
        close(incoming);
    }
}
