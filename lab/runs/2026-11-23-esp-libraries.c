#include <intel-ipsec-mb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#define POOL 512
#define FR 2048
static unsigned char *pool; static struct gcm_key_data kd __attribute__((aligned(64))); static struct gcm_key_data kd2 __attribute__((aligned(64)));
static double now(void){struct timespec t;clock_gettime(CLOCK_THREAD_CPUTIME_ID,&t);return t.tv_sec*1e9+t.tv_nsec;}
static IMB_MGR *m;
static int imix[12]={64,64,64,64,64,64,64,576,576,576,576,1400};
static int len_of(int i,int mode){return mode?mode:imix[i%12];}
static void direct(int mode,int k256){
 struct gcm_context_data c; unsigned char iv[12]={0},aad[12]={0};
 for(int i=0;i<POOL;i++){unsigned char*p=pool+i*FR+256;int l=len_of(i,mode);iv[11]=i;
  if(k256)IMB_AES256_GCM_ENC(m,&kd2,&c,p,p,l,iv,aad,8,p+l,16);else IMB_AES128_GCM_ENC(m,&kd,&c,p,p,l,iv,aad,8,p+l,16);}
}
static void direct_dec(int mode,int k256){
 struct gcm_context_data c; unsigned char iv[12]={0},aad[12]={0},tag[16];
 for(int i=0;i<POOL;i++){unsigned char*p=pool+i*FR+256;int l=len_of(i,mode);iv[11]=i;
  if(k256)IMB_AES256_GCM_DEC(m,&kd2,&c,p,p,l,iv,aad,8,tag,16);else IMB_AES128_GCM_DEC(m,&kd,&c,p,p,l,iv,aad,8,tag,16);}
}
static void fill(IMB_JOB*j,unsigned char*p,int l,unsigned char*iv,unsigned char*aad,int k256){
 j->cipher_mode=IMB_CIPHER_GCM;j->hash_alg=IMB_AUTH_AES_GMAC;j->cipher_direction=IMB_DIR_ENCRYPT;j->chain_order=IMB_ORDER_CIPHER_HASH;
 j->enc_keys=j->dec_keys=k256?&kd2:&kd;j->key_len_in_bytes=k256?32:16;j->src=p;j->dst=p;j->msg_len_to_cipher_in_bytes=l;j->cipher_start_src_offset_in_bytes=0;
 j->msg_len_to_hash_in_bytes=l;j->hash_start_src_offset_in_bytes=0;j->iv=iv;j->iv_len_in_bytes=12;j->u.GCM.aad=aad;j->u.GCM.aad_len_in_bytes=8;j->auth_tag_output=p+l;j->auth_tag_output_len_in_bytes=16;}
static unsigned char ivs[POOL][12],aads[POOL][12];
static void job(int mode,int k256){for(int i=0;i<POOL;i++){IMB_JOB*j=IMB_GET_NEXT_JOB(m);fill(j,pool+i*FR+256,len_of(i,mode),ivs[i],aads[i],k256);IMB_SUBMIT_JOB_NOCHECK(m);}while(IMB_FLUSH_JOB(m));}
static void burst(int mode,int k256){IMB_JOB*js[64];for(int i=0;i<POOL;i+=64){int n=IMB_GET_NEXT_BURST(m,64,js);if(n!=64)abort();
 for(int k=0;k<64;k++)fill(js[k],pool+(i+k)*FR+256,len_of(i+k,mode),ivs[i+k],aads[i+k],k256);
 if(IMB_SUBMIT_BURST_NOCHECK(m,64,js)!=64)abort();}}
static void sgl(int mode,int k256){
 struct gcm_context_data c; unsigned char iv[12]={0},aad[12]={0};
 for(int i=0;i<POOL;i++){unsigned char*p=pool+i*FR+256;int l=len_of(i,mode);iv[11]=i;
  if(k256){IMB_AES256_GCM_INIT(m,&kd2,&c,iv,aad,8);IMB_AES256_GCM_ENC_UPDATE(m,&kd2,&c,p,p,l);IMB_AES256_GCM_ENC_FINALIZE(m,&kd2,&c,p+l,16);}
  else{IMB_AES128_GCM_INIT(m,&kd,&c,iv,aad,8);IMB_AES128_GCM_ENC_UPDATE(m,&kd,&c,p,p,l);IMB_AES128_GCM_ENC_FINALIZE(m,&kd,&c,p+l,16);}}
}
static int cmp(const void*a,const void*b){double x=*(double*)a,y=*(double*)b;return x<y?-1:x>y;}
int main(){
 m=alloc_mb_mgr(0);init_mb_mgr_auto(m,NULL);
 printf("version %s features %llx\n",imb_get_version_str(),(unsigned long long)m->features);
 pool=aligned_alloc(4096,POOL*FR);memset(pool,1,POOL*FR);unsigned char key[32]={1,2,3};
 IMB_AES128_GCM_PRE(m,key,&kd);IMB_AES256_GCM_PRE(m,key,&kd2);
 struct{const char*n;void(*f)(int,int);}t[]={{"direct",direct},{"direct dec",direct_dec},{"job nocheck",job},{"burst nocheck 64",burst},{"init/update/finalize",sgl}};
 int modes[]={64,1400,0};
 for(int k=0;k<2;k++)for(int q=0;q<3;q++){double bytes=0;for(int i=0;i<POOL;i++)bytes+=len_of(i,modes[q]);
  double r[5][7];for(int rep=0;rep<7;rep++)for(int x=0;x<5;x++){int n=0;double s=now(),e;do{t[x].f(modes[q],k);n++;e=now();}while(e-s<3e7);r[x][rep]=(e-s)/n/POOL;}
  for(int x=0;x<5;x++){qsort(r[x],7,8,cmp);printf("aes-%d %s %-22s best %7.1f median %7.1f ns/packet %6.1f Gbit/s\n",k?256:128,modes[q]==64?"64 B":modes[q]?"1400 B":"IMIX",t[x].n,r[x][0],r[x][3],bytes/POOL*8/r[x][3]);}}
}
